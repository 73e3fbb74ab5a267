// Phi 1 to 2: one LayerNorm for parallel attention and MLP; rotates half of each head; biases everywhere.
#include "models/phi.h"

namespace sluice {

DecoderSpec phi_like(const Config& config, std::string family, const SizeKeys& keys, bool qk_norm,
                     const char* activation) {
  DecoderSpec s = read_sizes(config, std::move(family), keys);
  s.norm = read_layer_norm(config, "layer_norm_eps");
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, {.partial = 0.5})};
  s.tied_head = config.get("tie_word_embeddings", false);
  s.attention.out = "dense";
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = true;
  if (config.get("qk_layernorm", qk_norm)) {
    s.attention.qk_norm = QkNorm::kHead;
    s.attention.qk_norm_spec = s.norm;
    s.attention.q_norm = "q_layernorm";
    s.attention.k_norm = "k_layernorm";
  }
  s.mlp.activation = read_activation(config, "hidden_act", activation);
  s.mlp.gated = false;
  s.names.norm = "final_layernorm";
  return s;
}

}  // namespace sluice

namespace sluice::models::phi {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = phi_like(config, "phi", {}, false, "gelu_new");
  s.parallel = true;
  s.head_bias = true;
  s.mlp.in = {"fc1"};
  s.mlp.out = "fc2";
  s.names.mlp_norm = "";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "phi", .architectures = {"PhiForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::phi
