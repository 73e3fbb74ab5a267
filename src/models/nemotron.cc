// Nemotron-4 and Minitron: LayerNorms that multiply by one plus their weight; a plain squared-ReLU MLP.
#include "nn/decoder_config.h"

namespace sluice::models::nemotron {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "nemotron",
                 {.norm_eps_key = "norm_eps", .norm_eps = 1e-5, .activation = "relu2", .rope = {.partial = 0.5}});
  s.norm.kind = NormSpec::Kind::kLayer;
  s.norm.bias = true;
  s.norm.offset = 1.0f;
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "nemotron",
    .architectures = {"NemotronForCausalLM"},
    .build = build,
    .ignored =
        {
            {"kv_channels"},   // head_dim is read instead
            {"rope_percent"},  // partial_rotary_factor is read instead
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::nemotron
