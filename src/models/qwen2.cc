// Qwen 2 and 2.5: Llama's graph with biases on q, k and v, and windows in the layers that ask for one (arXiv:2407.10671).
#include <fmt/core.h>

#include "nn/decoder.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "qwen2");
  s.qkv_bias = true;
  const int window = config.get("sliding_window", 0);
  const int first_windowed = config.get("max_window_layers", 28);
  const bool use_window = config.get("use_sliding_window", false) && window > 0;
  const auto kinds = config.get("layer_types", std::vector<std::string>{});
  if (!kinds.empty() && kinds.size() != s.windows.size()) {
    config.refuse("layer_types", fmt::format("has {} entries for {} layers", kinds.size(), s.layers));
  }
  for (int i = 0; i < s.layers; ++i) {
    bool windowed = use_window && i >= first_windowed;
    if (!kinds.empty()) {
      if (kinds[i] != "full_attention" && kinds[i] != "sliding_attention") {
        config.refuse("layer_types", fmt::format("'{}' is neither full_attention nor sliding_attention", kinds[i]));
      }
      windowed = kinds[i] == "sliding_attention";
      if (windowed && window <= 0) config.refuse("layer_types", "asks for sliding_attention without a sliding_window");
    }
    if (windowed) s.windows[i] = window;
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen2", .architectures = {"Qwen2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
