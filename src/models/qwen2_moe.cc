// Qwen 1.5 and 2 MoE: Qwen 2 with routed experts, and a shared expert scaled by a sigmoid.
#include "nn/decoder_config.h"

namespace sluice::models::qwen2_moe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "qwen2_moe");
  s.attention.qkv_bias = config.get("qkv_bias", true);
  read_qwen_windows(config, s, 28);
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1408));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  read_sparse_layers(config, s);
  s.moe.normalize = config.get("norm_topk_prob", false);
  s.moe.shared = "shared_expert";
  s.moe.shared_inner =
      read_positive(config, "shared_expert_intermediate_size", config.get("shared_expert_intermediate_size", 5632));
  s.moe.shared_gate = true;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen2_moe", .architectures = {"Qwen2MoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::qwen2_moe
