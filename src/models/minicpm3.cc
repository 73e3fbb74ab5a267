// MiniCPM 3: latent attention that rotates part of each head; factors for embedding, residuals and logits.
#include <cmath>

#include "base/json.h"
#include "models/deepseek.h"
#include "models/minicpm.h"

namespace sluice::models::minicpm3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = latent_llama_like(config, "minicpm3",
                                    {.norm_eps = 1e-5,
                                     .tied_head = true,
                                     .q_rank = 768,
                                     .kv_rank = 256,
                                     .nope_dim = 64,
                                     .rope_dim = 32,
                                     .value_dim = 0,
                                     .interleaved_rope = false});
  s.mlp.bias = config.get("mlp_bias", false);
  // Reads a factor; null means that it has no effect.
  const auto factor = [&](const char* key, double absent, double null) {
    return static_cast<float>(config.values().contains(key) && !config.has(key) ? null : absent);
  };
  read_minicpm_scales(config, s,
                      {.embedding = 12.0f,
                       .depth = factor("scale_depth", 1.4, std::sqrt(s.depth())),
                       .base = factor("dim_model_base", 256, s.hidden)});
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "minicpm3", .architectures = {"MiniCPM3ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::minicpm3
