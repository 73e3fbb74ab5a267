// ChatGLM 2 and 3, and GLM-4 9B as first published (arXiv:2406.12793): rotates half of each head in adjacent pairs; few
// kv heads; fused projections.
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::chatglm {
namespace {

void read_attention(const Config& config, DecoderSpec& s) {
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "kv_channels", config.get("kv_channels", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  if (config.get("multi_query_attention", false)) {
    a.kv_heads = read_positive(config, "multi_query_group_num", config.get("multi_query_group_num", 1));
    if (a.heads % a.kv_heads != 0) config.refuse("multi_query_group_num", "does not divide num_attention_heads");
  } else {
    config.ignore("multi_query_group_num");
  }
  a.out_bias = s.mlp.bias = config.get("add_bias_linear", false);
  a.qkv_bias = config.get("add_qkv_bias", false) || a.out_bias;
  a.qkv = {"query_key_value"};
  a.out = "dense";
  a.interleaved_rope = true;
  RopeSpec rope;
  rope.rotary_dim = a.head_dim / 2;
  if (a.head_dim % 4 != 0) config.refuse("kv_channels", "must be a multiple of 4");
  const double ratio = config.get("rope_ratio", 1.0);
  if (!(ratio > 0)) config.refuse("rope_ratio", "must be positive");
  rope.theta = 10000.0 * ratio;
  s.ropes = {rope};
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "chatglm",
                             {.vocab = "padded_vocab_size",
                              .layers = "num_layers",
                              .kv_heads = nullptr,
                              .inner = "ffn_hidden_size",
                              .max_positions = "seq_length"});
  const auto only = [&](const char* key, bool wanted) {
    if (config.get(key, wanted) != wanted) config.refuse(key, "is not supported");
  };
  only("rmsnorm", true);
  only("post_layer_norm", true);
  only("apply_residual_connection_post_layernorm", false);
  only("original_rope", true);
  only("interleaved_qkv", false);
  if (config.get("pre_seq_len", 0) != 0) config.refuse("pre_seq_len", "prefixes are not supported");
  if (config.get("quantization_bit", 0) != 0) config.refuse("quantization_bit", "is not supported");
  s.norm.eps = config.get("layernorm_epsilon", 1e-5f);
  s.tied_head = config.get("tie_word_embeddings", false);
  read_attention(config, s);
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  s.names = {.body = "transformer",
             .embedding = "embedding.word_embeddings",
             .layers = "encoder.layers",
             .norm = "encoder.final_layernorm",
             .head = "transformer.output_layer",
             .attention = "self_attention"};
  // These keys set precision and fusion in the first implementation, or the vocabulary size before padding.
  for (const char* key : {"apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion",
                          "fp32_residual_connection", "prefix_projection", "vocab_size"}) {
    config.ignore(key);
  }
  context.used.insert("transformer.rotary_pos_emb.inv_freq");  // follows from the configuration
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "chatglm",
    .architectures = {"ChatGLMModel", "ChatGLMForConditionalGeneration"},
    .build = build,
    .ignored =
        {
            {"num_hidden_layers"},  // num_layers is read instead
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::chatglm
