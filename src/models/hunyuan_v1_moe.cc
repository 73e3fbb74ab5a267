// Hunyuan A13B: norms of queries and keys after the rotation, experts and one for all rows.
#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "hunyuan_v1_moe", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHeadAfterRope;
  s.attention.q_norm = "query_layernorm";
  s.attention.k_norm = "key_layernorm";
  read_experts(config, s, "num_experts", "moe_topk", s.mlp.inner);
  s.moe.normalize = true;
  s.moe.router = "gate.wg";
  s.moe.shared = "shared_mlp";
  s.moe.shared_inner = s.mlp.inner;
  config.ignore("eod_token_id");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "hunyuan_v1_moe", .architectures = {"HunYuanMoEV1ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
