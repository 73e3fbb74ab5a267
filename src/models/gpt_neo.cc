// GPT-Neo: GPT-2 with a window in every other layer and unscaled scores.
#include "base/json.h"
#include "models/gpt2.h"

namespace sluice::models::gpt_neo {
namespace {

constexpr SizeKeys kKeys{
    .layers = "num_layers", .heads = "num_heads", .kv_heads = nullptr, .inner_is_four_hidden = true};

// Returns "attention_layers", or expands "attention_types": [[["global", "local"], 12]] repeats both twelve times.
std::vector<std::string> layer_kinds(const Config& config) {
  const Json* types = config.find("attention_types");
  if (config.has("attention_layers")) return config.at<std::vector<std::string>>("attention_layers");
  if (types == nullptr) config.refuse("attention_types", "is missing");
  std::vector<std::string> kinds;
  for (const Json& item : *types) {
    const bool valid =
        item.is_array() && item.size() == 2 && item[0].is_array() && item[1].is_number_unsigned() && item[1] < 10000;
    if (!valid) config.refuse("attention_types", "must be a list of [kinds, times]");
    for (unsigned times = item[1].get<unsigned>(); times > 0; --times) {
      for (const Json& kind : item[0]) kinds.push_back(kind.is_string() ? kind.get<std::string>() : "");
    }
  }
  return kinds;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gpt2_like(config, "gpt_neo", kKeys, "gelu_new");
  s.attention.scale = 1.0f;
  s.attention.out = "out_proj";
  s.attention.out_bias = true;
  s.names.attention = "attn.attention";
  const int window = read_positive(config, "window_size", config.get("window_size", 256));
  const std::vector<std::string> kinds = layer_kinds(config);
  if (kinds.size() != s.layers.size()) config.refuse("attention_types", "must have one entry per layer");
  for (int i = 0; i < s.depth(); ++i) {
    if (kinds[i] != "global" && kinds[i] != "local")
      config.refuse("attention_types", "must list only global and local");
    s.layers[i].window = kinds[i] == "local" ? window : 0;
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gpt_neo", .architectures = {"GPTNeoForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gpt_neo
