// Phi-3.5 MoE (arXiv:2404.14219): LayerNorms. Two experts are chosen one after the other, each weighted by its share
// among scores close to it.
#include "models/mixtral.h"

namespace sluice::models::phimoe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mixtral_like(config, "phimoe");
  s.norm = read_layer_norm(config, "rms_norm_eps");
  read_attention_bias(config, s, true);
  s.head_bias = config.get("lm_head_bias", false);
  s.moe.score = ops::Routing::Score::kSparseMixer;
  s.moe.normalize = false;
  s.moe.jitter = config.get("router_jitter_noise", 0.01f);
  if (s.moe.top_k != 2) config.refuse("num_experts_per_tok", "must be 2 for this routing");
  config.ignore("input_jitter_noise");  // training only
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "phimoe", .architectures = {"PhimoeForCausalLM", "PhiMoEForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::phimoe
