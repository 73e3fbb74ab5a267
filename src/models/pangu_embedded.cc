// openPangu Embedded (Huawei, arXiv:2505.22375): Llama whose attention projections all have biases.
#include "nn/decoder_config.h"

namespace sluice::models::pangu_embedded {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "pangu_embedded");
  s.attention.qkv_bias = s.attention.out_bias = config.get("bias", true);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "pangu_embedded", .architectures = {"PanguEmbeddedForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::pangu_embedded
