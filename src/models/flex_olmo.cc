// FlexOlmo (arXiv:2507.07024): OLMo 2's norms around OLMoE's experts.
#include "nn/decoder_config.h"

namespace sluice::models::flex_olmo {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "flex_olmo", {.rope = {.theta = 500000.0}});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kProjection;
  use_post_norms(s);
  read_experts(config, s, "num_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = config.get("norm_topk_prob", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "flex_olmo", .architectures = {"FlexOlmoForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::flex_olmo
