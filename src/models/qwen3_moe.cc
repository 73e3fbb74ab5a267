// Qwen 3 with experts (arXiv:2505.09388).
#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "qwen3_moe");
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  read_qwen_windows(config, s, 28);
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 768));
  read_experts(config, s, config.has("num_experts") ? "num_experts" : "num_local_experts", "num_experts_per_tok",
               inner);
  read_sparse_layers(config, s);
  s.moe.normalize = config.get("norm_topk_prob", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen3_moe", .architectures = {"Qwen3MoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
