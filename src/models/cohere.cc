// Command R: one LayerNorm for parallel attention and MLP; rotates adjacent pairs.
#include "models/cohere.h"

namespace sluice {

DecoderSpec cohere_like(const Config& config, std::string family, const RopeDefaults& rope) {
  DecoderSpec s = llama_like(config, std::move(family), {.tied_head = true, .rope = rope});
  s.norm = read_layer_norm(config, "layer_norm_eps", false);
  read_attention_bias(config, s, true);
  s.attention.interleaved_rope = true;
  s.parallel = true;
  s.names.mlp_norm = "";
  s.logit_scale = config.get("logit_scale", 0.0625f);
  if (!(s.logit_scale > 0)) config.refuse("logit_scale", "must be positive");
  return s;
}

}  // namespace sluice

namespace sluice::models::cohere {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = cohere_like(config, "cohere", {.theta = 500000.0});
  if (config.get("use_qk_norm", false)) {
    s.attention.qk_norm = QkNorm::kEachHead;
    s.attention.qk_norm_spec = s.norm;
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "cohere", .architectures = {"CohereForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::cohere
