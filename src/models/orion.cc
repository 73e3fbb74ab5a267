// Orion 14B (arXiv:2401.12246): Llama's graph with LayerNorms.
#include "nn/decoder_config.h"

namespace sluice::models::orion {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "orion");
  s.norm = read_layer_norm(config, "rms_norm_eps");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "orion", .architectures = {"OrionForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::orion
