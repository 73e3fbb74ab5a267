// OLMo 3: OLMo 2 with sliding windows in three of four layers; sliding layers have their own rotation.
#include "nn/decoder_config.h"

namespace sluice::models::olmo3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "olmo3", {.norm_eps = 1e-5, .rope = {.theta = 500000.0, .layer_type = "full_attention"}});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kProjection;
  use_post_norms(s);
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const auto sliding = read_windows(config, s, window, [](int layer) { return (layer + 1) % 4 != 0; });
  s.ropes.push_back(read_sliding_rope(config, s, s.ropes[0].theta));
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = sliding[i] ? 1 : 0;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "olmo3", .architectures = {"Olmo3ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::olmo3
