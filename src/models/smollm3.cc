// SmolLM3: Llama's graph, with no rotation in every fourth layer.
#include "nn/decoder_config.h"

namespace sluice::models::smollm3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "smollm3", {.tied_head = true, .rope = {.theta = 2000000.0}});
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  const int interval = read_positive(config, "no_rope_layer_interval", config.get("no_rope_layer_interval", 4));
  auto rotated = config.get("no_rope_layers", std::vector<int>{});  // 1 means that the layer is rotated
  if (rotated.empty()) {
    for (int i = 0; i < s.depth(); ++i) rotated.push_back((i + 1) % interval != 0);
  }
  if (rotated.size() != s.layers.size()) config.refuse("no_rope_layers", "must have one entry per layer");
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = rotated[i] != 0 ? 0 : -1;
  const bool use_window = config.get("use_sliding_window", false);
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 0));
  read_windows(config, s, window, [&](int layer) { return use_window && rotated[layer] == 0; });
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "smollm3",
    .architectures = {"SmolLM3ForCausalLM"},
    .build = build,
    .ignored = {{"max_window_layers"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::smollm3
