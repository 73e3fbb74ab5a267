// Gemma: scaled embeddings, norms that multiply by one plus their weight, GELU (arXiv:2403.08295).
#include "models/gemma.h"

#include <fmt/core.h>

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
  s.embedding_scale = gemma_factor(context, std::sqrt(static_cast<double>(s.hidden)));
  s.scaled_vectors = true;
  return s;
}

float gemma_factor(const LoadContext& context, double value) {
  const auto factor = static_cast<float>(value);
  std::byte stored[8];
  float rounded = 0;
  from_float(context.dtype, &factor, stored, 1);
  to_float(context.dtype, stored, &rounded, 1);
  return rounded;
}

void share_gemma_kv(const Config& config, LoadContext& context, DecoderSpec& s, const std::vector<bool>& sliding,
                    int fallback) {
  const int shared = config.get("num_kv_shared_layers", fallback), first = s.depth() - shared;
  if (shared < 0 || first < 1)
    config.refuse("num_kv_shared_layers", fmt::format("{} is not possible with {} layers", shared, s.depth()));
  for (int i = first; i < s.depth(); ++i) {
    int from = first - 1;
    while (from >= 0 && sliding[from] != sliding[i]) --from;
    if (from < 0)
      config.refuse("num_kv_shared_layers",
                    fmt::format("leaves no layer of the same kind whose cache layer {} could share", i));
    s.layers[i].kv_from = from;
    for (const char* name : {"k_proj", "v_proj", "k_norm", "v_norm"}) {  // stored but not used
      ignore_tensors(context, fmt::format("{}.{}.{}.self_attn.{}.", s.names.body, s.names.layers, i, name));
    }
  }
}

void use_gemma2_blocks(const Config& config, DecoderSpec& s, double soft_cap, double logit_soft_cap) {
  s.names.attention_post_norm = "post_attention_layernorm";
  s.names.mlp_norm = "pre_feedforward_layernorm";
  s.names.mlp_post_norm = "post_feedforward_layernorm";
  const double scalar = config.get("query_pre_attn_scalar", 256.0);
  if (!(scalar > 0)) config.refuse("query_pre_attn_scalar", "must be positive");
  s.attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
  s.attention.soft_cap = static_cast<float>(read_or_off(config, "attn_logit_softcapping", soft_cap));
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "final_logit_softcapping", logit_soft_cap));
}

}  // namespace sluice

namespace sluice::models::gemma {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "gemma", "hidden_act");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gemma", .architectures = {"GemmaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gemma
