// Jais 2: Llama's graph with LayerNorm, biases and squared ReLU.
#include "nn/decoder_config.h"

namespace sluice::models::jais2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "jais2", {.activation = "relu2"});
  s.norm = read_layer_norm(config, "layer_norm_eps");
  read_attention_bias(config, s, true, true);
  s.mlp.bias = config.get("mlp_bias", true);
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "jais2", .architectures = {"Jais2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::jais2
