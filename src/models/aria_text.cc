// Aria's decoder (arXiv:2410.05993): Llama's graph with routed experts and one shared expert.
#include "nn/decoder_config.h"

namespace sluice::models::aria_text {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "aria_text");
  read_attention_bias(config, s, true);
  if (config.get("mlp_bias", false)) config.refuse("mlp_bias", "true is not supported: experts have none");
  read_experts(config, s, "moe_num_experts", "moe_topk", s.mlp.inner);
  s.moe.normalize = true;  // softmax over the chosen experts
  s.moe.shared_inner = s.mlp.inner * config.get("moe_num_shared_experts", 2);
  s.moe.layout = ExpertLayout::kTransposedHalves;
  s.moe.router = "router";
  s.moe.gate = "experts.fc1.weight";
  s.moe.down = "experts.fc2.weight";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "aria_text", .architectures = {"AriaTextForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::aria_text
