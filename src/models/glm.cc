// GLM-4 9B in transformers' own format: rotates half of each head in adjacent pairs.
#include "nn/decoder_config.h"

namespace sluice::models::glm {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "glm", {.head_dim = 128, .norm_eps = 1.5625e-7, .rope = {.partial = 0.5}});
  read_attention_bias(config, s, false, true);
  s.attention.interleaved_rope = true;
  s.mlp.in = {"gate_up_proj"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "glm", .architectures = {"GlmForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::glm
