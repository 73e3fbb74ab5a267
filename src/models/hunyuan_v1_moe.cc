// Hunyuan A13B: norms of queries and keys after the rotation, experts and one for all rows.
#include "models/hunyuan.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = hunyuan_like(config, "hunyuan_v1_moe");
  read_experts(config, s, "num_experts", "moe_topk", s.mlp.inner);
  s.moe.normalize = true;
  s.moe.router = "gate.wg";
  s.moe.shared = "shared_mlp";
  s.moe.shared_inner = s.mlp.inner;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "hunyuan_v1_moe", .architectures = {"HunYuanMoEV1ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
