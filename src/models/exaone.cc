// EXAONE 3 and 3.5 (arXiv:2412.04862): Llama's graph under its own names.
#include "models/gpt2.h"

namespace sluice::models::exaone {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "exaone", {.layers = "num_layers"});
  s.norm.eps = config.get("layer_norm_epsilon", 1e-5f);
  s.mlp.activation = read_activation(config, "activation_function", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  if (config.get("head_dim", s.attention.head_dim) != s.attention.head_dim) {
    config.refuse("head_dim", "must be hidden_size / num_attention_heads");
  }
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions)};
  s.attention.out = "out_proj";
  s.mlp.in = {"c_fc_0", "c_fc_1"};
  s.mlp.out = "c_proj";
  s.names = gpt2_names();
  s.names.attention = "attn.attention";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "exaone", .architectures = {"ExaoneForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::exaone
