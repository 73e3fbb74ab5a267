// Gemma 3, text: Gemma 2 with query and key norms instead of soft caps, and one rotation per kind of layer
// (arXiv:2503.19786).
#include "models/gemma.h"

namespace sluice::models::gemma3_text {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "gemma3_text", "hidden_activation",
                             {.theta = 1000000.0, .layer_type = "full_attention"});
  use_gemma2_blocks(config, s, 0.0, 0.0);
  s.attention.soft_cap = 0.0f;  // the reference ignores attn_logit_softcapping
  s.attention.qk_norm = QkNorm::kHead;
  s.attention.qk_norm_spec = s.norm;
  int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  // EmbeddingGemma (arXiv:2509.20354): half of the window to each side
  if (!s.attention.causal) window = window / 2 + 1;
  config.ignore("_sliding_window_pattern");
  const int pattern = read_positive(config, "sliding_window_pattern", config.get("sliding_window_pattern", 6));
  const auto sliding = read_windows(config, s, window, [=](int layer) { return (layer + 1) % pattern != 0; });
  s.ropes.push_back(read_sliding_rope(config, s, config.get("rope_local_base_freq", 10000.0)));
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = sliding[i] ? 1 : 0;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gemma3_text", .architectures = {"Gemma3ForCausalLM"}, .build = build};
const ModelFamily embedding{
    .name = "embedding_gemma", .architectures = {"Gemma3TextModel"}, .build = build, .encoder = true};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{family}, Registry<ModelFamily>{embedding}};

}  // namespace
}  // namespace sluice::models::gemma3_text
