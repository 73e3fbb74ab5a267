// BLOOM: ALiBi, a LayerNorm on the embeddings (arXiv:2211.05100).
#include "nn/decoder_config.h"

namespace sluice::models::bloom {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "bloom",
                             {.hidden = config.has("n_embed") ? "n_embed" : "hidden_size",
                              .layers = config.has("n_layer") ? "n_layer" : "num_hidden_layers",
                              .heads = config.has("n_head") ? "n_head" : "num_attention_heads",
                              .kv_heads = nullptr,
                              .inner = nullptr,
                              .max_positions = "seq_length"});
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads"})
    config.ignore(key);  // the n_* spelling takes precedence
  s.normed_residual = config.get("apply_residual_connection_post_layernorm", false);
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kAlibi;
  s.attention.alibi_slopes = alibi_slopes(s.attention.heads);
  s.attention.qkv = {"query_key_value"};
  s.attention.qkv_rows = grouped_qkv_rows(s.attention);
  s.attention.out = "dense";
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = true;
  s.mlp.inner = 4 * s.hidden;
  s.mlp.activation = ops::Activation::kGeluTanh;
  s.mlp.gated = false;
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  s.names = {.body = "transformer",
             .embedding = "word_embeddings",
             .embedding_norm = "word_embeddings_layernorm",
             .layers = "h",
             .norm = "ln_f",
             .attention = "self_attention"};
  // These keys choose between equivalent computations in the training code.
  for (const char* key : {"slow_but_exact", "offset_alibi", "masked_softmax_fusion", "bias_dropout_fusion",
                          "attention_softmax_in_fp32", "skip_bias_add", "skip_bias_add_qkv", "n_inner"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "bloom",
    .architectures = {"BloomForCausalLM"},
    .build = build,
    .ignored = {{"bias_dropout_fusion"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::bloom
