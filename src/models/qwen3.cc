// Qwen 3, dense: Qwen 2 with query and key norms instead of biases (arXiv:2505.09388).
#include "nn/decoder_config.h"

namespace sluice::models::qwen3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "qwen3", {.head_dim = 128});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  read_qwen_windows(config, s, 28);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen3", .architectures = {"Qwen3ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::qwen3
