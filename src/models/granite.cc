// Granite 3, dense: Llama's graph with multipliers for embedding, scores, residuals and logits.
#include "models/granite.h"

namespace sluice {

DecoderSpec granite_like(const Config& config, std::string family, const LlamaDefaults& defaults) {
  DecoderSpec s = llama_like(config, std::move(family), defaults);
  read_attention_bias(config, s, true);
  s.attention.scale = config.get("attention_multiplier", 1.0f);
  s.embedding_scale = config.get("embedding_multiplier", 1.0f);
  s.residual_scale = config.get("residual_multiplier", 1.0f);
  const float logits_scaling = config.get("logits_scaling", 1.0f);
  if (!(logits_scaling > 0)) config.refuse("logits_scaling", "must be positive");
  if (!(s.embedding_scale > 0)) config.refuse("embedding_multiplier", "must be positive");
  s.logit_scale = 1.0f / logits_scaling;
  return s;
}

}  // namespace sluice

namespace sluice::models::granite {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_like(config, "granite");
  s.mlp.bias = config.get("mlp_bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "granite", .architectures = {"GraniteForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::granite
