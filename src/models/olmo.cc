// OLMo: Llama's graph with LayerNorms without weights, and clamped projections (arXiv:2402.00838).
#include "nn/decoder_config.h"

namespace sluice::models::olmo {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "olmo");
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = 1e-5f, .weight = false};
  read_attention_bias(config, s, true);
  s.attention.clip = static_cast<float>(config.get("clip_qkv", 0.0));
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "olmo", .architectures = {"OlmoForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::olmo
