// StarCoder 2: LayerNorms, biases, a plain MLP, a window (arXiv:2402.19173).
#include "nn/decoder_config.h"

namespace sluice::models::starcoder2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "starcoder2", {.activation = "gelu_pytorch_tanh", .tied_head = true});
  s.norm = read_layer_norm(config, "norm_epsilon");
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = config.get("use_bias", true);
  s.mlp.gated = false;
  s.mlp.in = {"c_fc"};
  s.mlp.out = "c_proj";
  read_one_window(config, s, 0);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "starcoder2",
    .architectures = {"Starcoder2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"layer_norm_eps"},  // norm_epsilon is read instead
            {"mlp_type", "\"default\""},
            {"norm_type", "\"layer_norm\""},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::starcoder2
