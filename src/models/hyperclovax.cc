// HyperCLOVA X: Llama's graph with Granite's multipliers and norms of the sublayers' results.
#include "nn/decoder_config.h"

namespace sluice::models::hyperclovax {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "hyperclovax");
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  s.attention.scale = config.get("attention_multiplier", s.attention.scale);
  s.embedding_scale = config.get("embedding_multiplier", 1.0f);
  s.residual_scale = config.get("residual_multiplier", 1.0f);
  s.logit_scale = config.get("logits_scaling", 1.0f);
  if (!(s.embedding_scale > 0)) config.refuse("embedding_multiplier", "must be positive");
  if (!(s.logit_scale > 0)) config.refuse("logits_scaling", "must be positive");
  if (config.get("use_post_norm", true)) {
    s.names.attention_post_norm = "post_norm1";
    s.names.mlp_post_norm = "post_norm2";
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "hyperclovax", .architectures = {"HyperCLOVAXForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::hyperclovax
