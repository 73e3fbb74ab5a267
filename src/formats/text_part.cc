// Extracts the text decoder of a multimodal checkpoint: its configuration, and its tensors without their prefixes.
#include "formats/text_part.h"

#include <fmt/core.h>

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
  std::string_view model_type;  // that of text_config, or of the whole checkpoint if text_config has or is none
  std::string_view architecture;
  std::string_view defaults = "{}";  // sizes that published files omit
};

// Text decoders that compute the same for text, regardless of the model's other inputs.
constexpr auto kDecoders = std::to_array<TextDecoder>({
    {"aria_text", "AriaTextForCausalLM"},
    {"cohere", "CohereForCausalLM"},
    {"cohere2", "Cohere2ForCausalLM"},
    {"deepseek_v2", "DeepseekV2ForCausalLM"},
    {"deepseek_v3", "DeepseekV3ForCausalLM"},
    {"ernie4_5", "Ernie4_5ForCausalLM"},
    {"exaone4", "Exaone4ForCausalLM"},
    {"gemma2", "Gemma2ForCausalLM"},
    {"gemma3_text", "Gemma3ForCausalLM",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072})"},
    {"gemma3n_text", "Gemma3nForCausalLM"},
    {"gemma4_text", "Gemma4ForCausalLM"},
    {"gemma4_unified_text", "Gemma4UnifiedForCausalLM"},
    {"glm4v_moe_text", "Glm4MoeForCausalLM", R"({"attention_bias": true})"},
    {"glm4v_text", "Glm4ForCausalLM", R"({"attention_bias": true})"},
    {"granite", "GraniteForCausalLM"},
    {"hyperclovax", "HyperCLOVAXForCausalLM"},
    {"internlm2", "InternLM2ForCausalLM"},
    {"internlm3", "InternLM3ForCausalLM"},
    {"kimi_k2", "DeepseekV3ForCausalLM"},
    {"lfm2", "Lfm2ForCausalLM"},
    {"lfm2_moe", "Lfm2MoeForCausalLM"},
    {"llama", "LlamaForCausalLM", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
         "num_hidden_layers": 32, "num_attention_heads": 32})"},
    {"llama4_text", "Llama4ForCausalLM"},
    {"minimax_m3_vl", "MiniMaxM3SparseForCausalLM"},
    {"ministral3", "Ministral3ForCausalLM"},
    {"mistral", "MistralForCausalLM", R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 131072})"},
    {"mistral4", "Mistral4ForCausalLM"},
    {"mllama_text_model", "LlamaForCausalLM"},
    {"muse_glimmer_text", "MuseGlimmerForCausalLM"},
    {"nemotron_h", "NemotronHForCausalLM"},
    {"phi3", "Phi3ForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen2_5_omni_text", "Qwen2ForCausalLM"},
    {"qwen2_5_vl", "Qwen2ForCausalLM"},
    {"qwen2_5_vl_text", "Qwen2ForCausalLM"},
    {"qwen2_vl", "Qwen2ForCausalLM"},
    {"qwen2_vl_text", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"},
    {"qwen3_omni_moe_text", "Qwen3MoeForCausalLM", R"({"norm_topk_prob": true})"},
    {"qwen3_vl_moe_text", "Qwen3VLMoeTextForCausalLM"},
    {"qwen3_vl_text", "Qwen3ForCausalLM"},
    {"smollm3", "SmolLM3ForCausalLM"},
    {"step3p5", "Step3p5ForCausalLM"},
});

// Tensor prefixes of decoders inside multimodal checkpoints, and their prefixes in text checkpoints. The first match
// applies.
constexpr auto kPrefixes = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"language_model.model.", "model."},
    {"language_model.lm_head.", "lm_head."},
    {"model.language_model.model.", "model."},
    {"model.language_model.lm_head.", "lm_head."},
    {"model.language_model.", "model."},
    {"model.text_model.", "model."},
    {"thinker.model.", "model."},
    {"thinker.lm_head.", "lm_head."},
    {"language_model.", ""},  // prefix of decoders whose inner names are already complete
    {"model.embed_tokens.", "model.embed_tokens."},
    {"model.layers.", "model.layers."},
    {"model.norm.", "model.norm."},
    {"lm_head.", "lm_head."},
    {"score.", "score."},
    {"mtp.", "mtp."},
});

// `place` is the path of the decoder's configuration, or empty.
const TextDecoder* find_decoder(const Json& whole, std::string_view place) {
  const Json& part = place.empty() ? whole : whole.at(Json::json_pointer(std::string(place)));
  const Json& values = part.contains("model_type") ? part : whole;
  if (!values.contains("model_type")) return nullptr;
  const auto found =
      std::ranges::find_if(kDecoders, [&](const TextDecoder& d) { return values["model_type"] == d.model_type; });
  return found == kDecoders.end() ? nullptr : &*found;
}

// Architectures that contain a text decoder although their name does not say so.
constexpr auto kWrappers = std::to_array<std::string_view>(
    {"H2OVLChatModel", "HCXVisionForCausalLM", "HCXVisionV2ForCausalLM", "InternVLChatModel", "NemotronH_Nano_VL_V2",
     "Qwen2_5OmniModel", "Qwen3OmniMoeModel"});

constexpr std::string_view kCausal = "ForCausalLM";

// Returns what the decoder's architecture ends with; empty for architectures that are not multimodal. `apart`: the
// decoder has a configuration of its own.
std::string_view decoder_kind(const Config& config, bool apart) {
  const auto names = config.get("architectures", std::vector<std::string>{});
  if (names.empty()) return {};
  const bool wrapper = std::ranges::find(kWrappers, names.front()) != kWrappers.end();
  if (wrapper || names.front().ends_with("ForConditionalGeneration")) return kCausal;
  for (const std::string_view kind : {"ForSequenceClassification", "Model"}) {
    if (apart && names.front().ends_with(kind)) return kind;
  }
  return {};
}

// Paths of the decoder's configuration inside the checkpoint's.
constexpr auto kPlaces =
    std::to_array<std::string_view>({"/text_config", "/llm_config", "/language_config", "/thinker_config/text_config"});

// Returns the path that exists; empty when the decoder's keys are at the top level.
std::string_view place_of(const Json& whole) {
  const auto found = std::ranges::find_if(kPlaces, [&](std::string_view place) {
    const Json::json_pointer path{std::string(place)};
    return whole.contains(path) && whole.at(path).is_object();
  });
  return found == kPlaces.end() ? std::string_view() : *found;
}

// Returns the decoder's configuration, from its own object or from the top-level keys.
Json text_values(const Json& whole, std::string_view place, bool stored_head) {
  const bool apart = !place.empty();
  Json values = apart ? whole.at(Json::json_pointer(std::string(place))) : Json::object();
  for (const auto& [key, value] : whole.items()) {
    const bool of_others = key.starts_with("vision_") || key.starts_with("image_") || key.starts_with("video_");
    if (apart ? key == "tie_word_embeddings" || key == "quantization_config" : !of_others) {
      if (!values.contains(key)) values[key] = value;
    }
    if (apart && (key == "id2label" || key == "num_labels")) values[key] = value;  // those of the head
  }
  // When the two settings contradict each other, versions of transformers differ. The stored tensors decide.
  const std::string_view tied = "tie_word_embeddings";
  if (apart && whole.contains(tied) && values[tied] != whole[tied]) values[tied] = !stored_head;
  return values;
}

std::optional<std::string> without_prefix(std::string_view name) {
  for (const auto& [inside, alone] : kPrefixes) {
    if (name.starts_with(inside)) return std::string(alone).append(name.substr(inside.size()));
  }
  return std::nullopt;
}

std::optional<std::string> text_name(std::string_view name, bool apart) {
  std::optional<std::string> own = without_prefix(name);
  if (!own && !apart && name.starts_with("model.")) own = name;
  return own;
}

using RenamedLayers = std::map<std::string, std::string>;  // old prefix to new prefix; empty: left out

// Returns the name after `layers`, and nothing if its layer is left out.
std::optional<std::string> renumbered(const std::string& name, const RenamedLayers& layers) {
  constexpr std::string_view kLayers = "model.layers.";
  const size_t end = name.starts_with(kLayers) ? name.find('.', kLayers.size()) : name.npos;
  if (end == name.npos) return name;
  const auto found = layers.find(name.substr(0, end + 1));
  if (found == layers.end()) return name;
  if (found->second.empty()) return std::nullopt;
  return found->second + name.substr(end + 1);
}

// Computes head_dim for decoders that do not read it from the configuration.
int hidden_per_head(const Json& values) {
  const int hidden = values.value("hidden_size", 0), heads = values.value("num_attention_heads", 0);
  return heads > 0 ? hidden / heads : 0;
}

// Llama 3.2 Vision. The layers that attend to images are skipped without images. The embedding has rows for image
// tokens, which the head does not have. Returns the layers, all of which are renumbered.
RenamedLayers leave_out_cross_attention(const Config& whole, Json& values, TensorMap& tensors) {
  const auto cross = values.value("cross_attention_layers", std::vector<int>{});
  values.erase("cross_attention_layers");
  const int depth = values.value("num_hidden_layers", 0);
  if (depth > static_cast<int64_t>(tensors.size())) {  // before the loop over them
    whole.refuse("text_config.num_hidden_layers",
                 fmt::format("{} is impossible: the text decoder has only {} tensors", depth, tensors.size()));
  }
  RenamedLayers renamed;
  int kept = 0;
  for (int i = 0; i < depth; ++i) {
    const bool skipped = std::ranges::find(cross, i) != cross.end();
    renamed[fmt::format("model.layers.{}.", i)] = skipped ? "" : fmt::format("model.layers.{}.", kept++);
  }
  values["num_hidden_layers"] = kept;
  TensorMap left;
  for (auto& [name, entry] : tensors) {
    const std::optional<std::string> own = renumbered(name, renamed);
    if (!own) continue;
    entry.name = *own;
    left.emplace(*own, std::move(entry));
  }
  const auto embedding = left.find("model.embed_tokens.weight");
  const int64_t vocab = values.value("vocab_size", int64_t{0});
  if (embedding != left.end() && embedding->second.data != nullptr && embedding->second.shape.rank() == 2) {
    TensorEntry& entry = embedding->second;
    if (vocab > 0 && entry.shape[0] > vocab) {
      entry.bytes = entry.bytes / static_cast<size_t>(entry.shape[0]) * static_cast<size_t>(vocab);
      entry.shape = {vocab, entry.shape[1]};
    }
  }
  tensors = std::move(left);
  return renamed;
}

}  // namespace

std::optional<std::string> TextPart::module(std::string_view name) const {
  const std::optional<std::string> own = without_prefix(std::string(name) + ".");
  if (!own) return std::nullopt;
  return renumbered(own->substr(0, own->size() - 1), layers_);
}

std::shared_ptr<const TextPart> take_text_part(Config& config, TensorMap& tensors) {
  const Json& whole = config.values();
  const std::string_view place = place_of(whole);
  const bool apart = !place.empty();
  const std::string_view kind = decoder_kind(config, apart);
  if (kind.empty()) return nullptr;
  const TextDecoder* decoder = find_decoder(whole, place);
  if (decoder == nullptr) return nullptr;
  TensorMap text;
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
  Json values = text_values(whole, place, text.contains("lm_head.weight"));
  const Json defaults = parse_json(decoder->defaults);
  for (const auto& [key, value] : defaults.items()) {
    if (!values.contains(key)) values[key] = value;
  }
  const std::string_view bare = decoder->architecture.substr(0, decoder->architecture.size() - kCausal.size());
  values["architectures"] = Json::array({fmt::format("{}{}", bare, kind)});
  if (decoder->model_type == "glm4v_text") values["head_dim"] = hidden_per_head(values);
  RenamedLayers layers;
  if (decoder->model_type == "mllama_text_model") layers = leave_out_cross_attention(config, values, text);
  log::info("{}: loading only the text decoder, {}; skipped {} tensors of other parts", config.origin(),
            decoder->architecture, others);
  const std::string origin = apart ? fmt::format("{}: {}", config.origin(), place.substr(1)) : config.origin();
  config = Config(std::move(values), origin);
  tensors = std::move(text);
  return std::make_shared<const TextPart>(std::move(layers));
}

}  // namespace sluice
