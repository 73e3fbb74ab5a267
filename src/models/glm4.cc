// GLM-4-0414: GLM with norms before and after both sublayers of a block.
#include "nn/decoder_config.h"

namespace sluice::models::glm4 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "glm4", {.head_dim = 128, .norm_eps = 1.5625e-7, .rope = {.partial = 0.5}});
  read_attention_bias(config, s, false, true);
  s.attention.interleaved_rope = true;
  s.mlp.in = {"gate_up_proj"};
  s.names.attention_post_norm = "post_self_attn_layernorm";
  s.names.mlp_post_norm = "post_mlp_layernorm";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "glm4", .architectures = {"Glm4ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::glm4
