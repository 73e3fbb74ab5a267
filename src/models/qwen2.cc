// Qwen 2 and 2.5: Llama's graph with biases on q, k and v, and windows in the layers that ask for one
// (arXiv:2407.10671).
#include "nn/decoder_config.h"

namespace sluice::models::qwen2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "qwen2");
  s.attention.qkv_bias = true;
  read_qwen_windows(config, s, 28);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen2", .architectures = {"Qwen2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::qwen2
