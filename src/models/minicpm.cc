// MiniCPM (arXiv:2404.06395): Llama's graph with factors on embedding, residuals and logits.
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "minicpm", {.tied_head = true});
  read_attention_bias(config, s, true);
  s.embedding_scale = config.get("scale_emb", 1.0f);
  if (!(s.embedding_scale > 0)) config.refuse("scale_emb", "is not positive");
  s.residual_scale = config.get("scale_depth", 1.0f) / std::sqrt(static_cast<float>(s.depth()));
  const float base = config.get("dim_model_base", 1.0f);
  if (!(base > 0)) config.refuse("dim_model_base", "is not positive");
  s.logit_scale = base / static_cast<float>(s.hidden);
  config.ignore("mup_denominator");  // training only
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "minicpm", .architectures = {"MiniCPMForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
