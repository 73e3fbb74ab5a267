// LFM2 with experts in all but the first layers.
#include "models/lfm2.h"

namespace sluice::models::lfm2_moe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = lfm2_like(config, "lfm2_moe");
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1792));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  s.moe.gate = "w1";
  s.moe.up = "w3";
  s.moe.down = "w2";
  s.moe.score = ops::Routing::Score::kSigmoid;
  if (config.get("use_expert_bias", true)) {
    s.moe.correction = "expert_bias";
    s.moe.correction_shape = {s.moe.experts};
  }
  s.moe.normalize = config.get("norm_topk_prob", true);
  s.moe.smallest_sum = 1e-6f;
  s.moe.scale = config.get("routed_scaling_factor", 1.0f);
  const int dense = config.get("num_dense_layers", 2);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "lfm2_moe", .architectures = {"Lfm2MoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::lfm2_moe
