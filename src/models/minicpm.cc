// MiniCPM (arXiv:2404.06395): Llama's graph with factors for embedding, residuals and logits.
#include "models/minicpm.h"

#include <cmath>

namespace sluice {

void read_minicpm_scales(const Config& config, DecoderSpec& s, const MiniCpmScales& d) {
  s.embedding_scale = config.get("scale_emb", d.embedding);
  if (!(s.embedding_scale > 0)) config.refuse("scale_emb", "must be positive");
  s.scaled_vectors = true;
  s.residual_scale = config.get("scale_depth", d.depth) / std::sqrt(static_cast<float>(s.depth()));
  const float base = config.get("dim_model_base", d.base);
  if (!(base > 0)) config.refuse("dim_model_base", "must be positive");
  s.logit_scale = base / static_cast<float>(s.hidden);
  config.ignore("mup_denominator");  // training only
}

}  // namespace sluice

namespace sluice::models::minicpm {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "minicpm", {.tied_head = true});
  read_attention_bias(config, s, true);
  read_minicpm_scales(config, s, {});
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "minicpm", .architectures = {"MiniCPMForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::minicpm
