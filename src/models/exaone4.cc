// EXAONE 4: norms of the sublayers' results and of queries and keys; rotates only sliding layers.
#include "nn/decoder_config.h"

namespace sluice::models::exaone4 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "exaone4", {.norm_eps = 1e-5});
  s.attention.qk_norm = QkNorm::kHead;
  use_post_norms(s);
  read_exaone_windows(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "exaone4", .architectures = {"Exaone4ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::exaone4
