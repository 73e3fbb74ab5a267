// Persimmon: LayerNorms, also of queries and keys, a plain MLP of squared ReLU, half of every head rotated.
#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "persimmon", {.kv_heads = nullptr});
  s.norm = read_layer_norm(config, "layer_norm_eps");
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, {.partial = 0.5})};
  s.tied_head = config.get("tie_word_embeddings", false);
  s.attention.qkv = {"query_key_value"};
  s.attention.qkv_rows = grouped_qkv_rows(s.attention);
  s.attention.out = "dense";
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = true;
  if (config.get("qk_layernorm", true)) {
    s.attention.qk_norm = QkNorm::kHead;
    s.attention.qk_norm_spec = s.norm;
    s.attention.q_norm = "q_layernorm";
    s.attention.k_norm = "k_layernorm";
  }
  s.mlp.activation = read_activation(config, "hidden_act", "relu2");
  s.mlp.gated = false;
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  s.names.norm = "final_layernorm";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "persimmon", .architectures = {"PersimmonForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
