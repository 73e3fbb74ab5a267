// Helium: Llama's graph, rotating adjacent pairs.
#include "nn/decoder_config.h"

namespace sluice::models::helium {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "helium", {.head_dim = 128, .norm_eps = 1e-8, .rope = {.theta = 100000.0}});
  read_attention_bias(config, s, false);
  s.attention.interleaved_rope = true;
  s.mlp.bias = config.get("mlp_bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "helium", .architectures = {"HeliumForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::helium
