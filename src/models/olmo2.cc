// OLMo 2: norms of the sublayers' results and of whole projections (arXiv:2501.00656).
#include "nn/decoder_config.h"

namespace sluice::models::olmo2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "olmo2", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kProjection;
  use_post_norms(s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "olmo2", .architectures = {"Olmo2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::olmo2
