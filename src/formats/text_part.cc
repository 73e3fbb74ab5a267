// Configurations inside configurations, and prefixes of tensors.
#include "formats/text_part.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace sluice {
namespace {

struct TextDecoder {
  std::string_view model_type;  // of text_config; of the whole, where it is not apart
  std::string_view architecture;
  std::string_view defaults = "{}";  // sizes that published files leave out
};

// Decoders that compute the same for text alone, whatever else their model understands.
constexpr auto kDecoders = std::to_array<TextDecoder>({
    {"cohere2", "Cohere2ForCausalLM"},
    {"deepseek_v3", "DeepseekV3ForCausalLM"},
    {"exaone4", "Exaone4ForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"gemma3_text", "Gemma3ForCausalLM",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072})"},
    {"gemma3n_text", "Gemma3nForCausalLM"},
    {"gemma4_text", "Gemma4ForCausalLM"},
    {"granite", "GraniteForCausalLM"},
    {"llama", "LlamaForCausalLM", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32})"},
    {"llama4_text", "Llama4ForCausalLM"},
    {"ministral3", "Ministral3ForCausalLM"},
    {"mistral", "MistralForCausalLM", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 131072})"},
    {"phi3", "Phi3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen2_5_vl", "Qwen2ForCausalLM"},
    {"qwen2_5_vl_text", "Qwen2ForCausalLM"},
    {"qwen2_vl", "Qwen2ForCausalLM"},
    {"qwen2_vl_text", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM"},
    {"qwen3_vl_text", "Qwen3ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
});

// Where decoders are inside of others, and where they are alone. The first that fits counts.
constexpr auto kPrefixes = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"language_model.model.", "model."},
    {"language_model.lm_head.", "lm_head."},
    {"model.language_model.", "model."},
    {"model.text_model.", "model."},
    {"lm_head.", "lm_head."},
    {"mtp.", "mtp."},
});

const TextDecoder* find_decoder(const Json& values) {
  if (!values.is_object() || !values.contains("model_type")) return nullptr;
  const auto found =
      std::ranges::find_if(kDecoders, [&](const TextDecoder& d) { return values["model_type"] == d.model_type; });
  return found == kDecoders.end() ? nullptr : &*found;
}

bool conditional(const Config& config) {
  const auto names = config.get("architectures", std::vector<std::string>{});
  return !names.empty() && names.front().ends_with("ForConditionalGeneration");
}

// The decoder's configuration, whether it lies in an object of its own or among the others' keys.
Json text_values(const Json& whole, bool apart) {
  Json values = apart ? whole["text_config"] : Json::object();
  for (const auto& [key, value] : whole.items()) {
    const bool of_others = key.starts_with("vision_") || key.starts_with("image_") || key.starts_with("video_");
    if (apart ? key == "tie_word_embeddings" || key == "quantization_config" : !of_others) {
      if (!values.contains(key)) values[key] = value;
    }
  }
  return values;
}

std::optional<std::string> text_name(std::string_view name, bool apart) {
  for (const auto& [inside, alone] : kPrefixes) {
    if (name.starts_with(inside)) return std::string(alone).append(name.substr(inside.size()));
  }
  if (!apart && name.starts_with("model.")) return std::string(name);
  return std::nullopt;
}

}  // namespace

void take_text_part(Config& config, Tensors& tensors) {
  if (!conditional(config)) return;
  const Json& whole = config.values();
  const bool apart = whole.contains("text_config");
  const TextDecoder* decoder = find_decoder(apart ? whole["text_config"] : whole);
  if (decoder == nullptr) return;
  Json values = text_values(whole, apart);
  const Json defaults = parse_json(decoder->defaults);
  for (const auto& [key, value] : defaults.items()) {
    if (!values.contains(key)) values[key] = value;
  }
  values["architectures"] = Json::array({decoder->architecture});
  Tensors text;
  size_t others = 0;
  for (auto& [name, entry] : tensors) {
    const std::optional<std::string> own = text_name(name, apart);
    if (!own) {
      ++others;
      continue;
    }
    entry.name = *own;
    text.emplace(*own, std::move(entry));
  }
  log::info("{}: the text decoder, {}; {} tensors of other parts are left out", config.origin(), decoder->architecture,
            others);
  config = Config(std::move(values), apart ? config.origin() + ": text_config" : config.origin());
  tensors = std::move(text);
}

}  // namespace sluice
