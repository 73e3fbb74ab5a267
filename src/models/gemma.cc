// Gemma: scaled embeddings, norms that scale by one plus their weight, GELU (arXiv:2403.08295).
#include "models/gemma.h"

#include <cmath>

namespace sluice {

DecoderSpec gemma_like(const Config& config, const LoadContext& context, std::string family, const char* activation_key,
                       const RopeDefaults& rope) {
  DecoderSpec s = llama_like(config, std::move(family),
                             {.head_dim = 256,
                              .activation_key = activation_key,
                              .activation = "gelu_pytorch_tanh",
                              .tied_head = true,
                              .rope = rope});
  s.norm.offset = 1.0f;
  read_attention_bias(config, s, true);
  s.attention.causal = !config.get("use_bidirectional_attention", false);
  if (!s.attention.causal && context.task == Task::kGenerate) {
    config.refuse("use_bidirectional_attention", "only causal attention can generate");
  }
  // The reference keeps the factor in the type of the weights: the rounding is part of the model.
  const auto factor = static_cast<float>(std::sqrt(static_cast<double>(s.hidden)));
  std::byte stored[8];
  from_float(context.dtype, &factor, stored, 1);
  to_float(context.dtype, stored, &s.embedding_scale, 1);
  return s;
}

void use_gemma2_blocks(const Config& config, DecoderSpec& s, double soft_cap, double logit_soft_cap) {
  s.names.attention_post_norm = "post_attention_layernorm";
  s.names.mlp_norm = "pre_feedforward_layernorm";
  s.names.mlp_post_norm = "post_feedforward_layernorm";
  const double scalar = config.get("query_pre_attn_scalar", 256.0);
  if (!(scalar > 0)) config.refuse("query_pre_attn_scalar", "is not positive");
  s.attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
  s.attention.soft_cap = static_cast<float>(read_or_off(config, "attn_logit_softcapping", soft_cap));
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "final_logit_softcapping", logit_soft_cap));
}

namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "gemma", "hidden_act");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gemma", .architectures = {"GemmaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
