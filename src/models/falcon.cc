// Falcon: three layouts of the fused projection, RoPE or ALiBi, parallel or sequential blocks (arXiv:2311.16867).
#include "nn/decoder_config.h"

namespace sluice::models::falcon {
namespace {

void read_attention(const Config& config, DecoderSpec& s, bool modern) {
  AttentionSpec& a = s.attention;
  const bool multi_query = config.get("multi_query", true);
  const int stored = config.get("num_kv_heads", a.heads);
  if (modern) {
    a.kv_heads = read_positive(config, "num_kv_heads", stored);
  } else if (multi_query) {
    a.kv_heads = 1;
  }
  if (a.heads % a.kv_heads != 0) config.refuse("num_kv_heads", "does not divide num_attention_heads");
  a.qkv = {"query_key_value"};
  if (modern || !multi_query) a.qkv_rows = grouped_qkv_rows(a);
  a.out = "dense";
  a.qkv_bias = a.out_bias = config.get("bias", false);
  if (!config.get("alibi", false)) {
    s.ropes = {read_rope(config, a.head_dim, s.max_positions)};
    return;
  }
  s.positions = Positions::kAlibi;
  // The reference keeps slopes in bfloat16. It adds ALiBi, scaled like the scores, both to the scores and to the mask:
  // twice in all.
  for (float slope : alibi_slopes(a.heads)) a.alibi_slopes.push_back(2 * a.scale * bf16_to_float(float_to_bf16(slope)));
  for (const char* key : {"rope_parameters", "rope_theta", "rope_scaling"}) config.ignore(key);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      read_sizes(config, "falcon", {.kv_heads = nullptr, .inner = "ffn_hidden_size", .inner_is_four_hidden = true});
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", true);
  const bool modern = config.get("new_decoder_architecture", false);
  read_attention(config, s, modern);
  s.mlp.activation = read_activation(config, "activation", "gelu");
  s.mlp.gated = false;
  s.mlp.bias = s.attention.qkv_bias;
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  s.names = {.body = "transformer",
             .embedding = "word_embeddings",
             .layers = "h",
             .norm = "ln_f",
             .attention = "self_attention"};
  const int norms = config.get("num_ln_in_parallel_attn", modern ? 2 : 1);
  const bool parallel = config.get("parallel_attn", true);
  s.parallel = modern || parallel;
  if (modern && norms == 2) {
    s.names.attention_norm = "ln_attn";
    s.names.mlp_norm = "ln_mlp";
  } else if (s.parallel) {
    s.names.mlp_norm = "";
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "falcon",
    .architectures = {"FalconForCausalLM", "RWForCausalLM"},
    .build = build,
    .ignored = {{"apply_residual_connection_post_layernorm", "false"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::falcon
