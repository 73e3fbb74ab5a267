// OLMoE: OLMo's norms of whole projections, and experts (arXiv:2409.02060).
#include "nn/decoder_config.h"

namespace sluice::models::olmoe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "olmoe", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kProjection;
  s.attention.clip = config.get("clip_qkv", 0.0f);
  read_experts(config, s, "num_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = config.get("norm_topk_prob", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "olmoe", .architectures = {"OlmoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::olmoe
