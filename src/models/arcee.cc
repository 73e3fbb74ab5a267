// Arcee AFM: Llama's graph with a plain squared-ReLU MLP.
#include "nn/decoder_config.h"

namespace sluice::models::arcee {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "arcee", {.norm_eps = 1e-5, .activation = "relu2"});
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "arcee", .architectures = {"ArceeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::arcee
