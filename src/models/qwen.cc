// Qwen, the first generation (arXiv:2309.16609): Llama's graph under its own names. Beyond the training length, the
// authors' code stretches the rotation and scales scores with the text's length. Contexts are limited to the training
// length.
#include <algorithm>

#include "models/gpt2.h"

namespace sluice::models::qwen {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "qwen", {.kv_heads = nullptr, .default_max_positions = 8192});
  AttentionSpec& a = s.attention;
  if (config.get("kv_channels", a.head_dim) != a.head_dim) {
    config.refuse("kv_channels", "must be hidden_size / num_attention_heads");
  }
  s.max_positions =
      std::min(s.max_positions, read_positive(config, "seq_length", config.get("seq_length", s.max_positions)));
  const RopeDefaults rope{.theta = config.get("rotary_emb_base", 10000.0), .partial = config.get("rotary_pct", 1.0)};
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, rope)};
  s.norm.eps = config.get("layer_norm_epsilon", 1e-6f);
  s.tied_head = config.get("tie_word_embeddings", false);
  if (!config.get("no_bias", true)) config.refuse("no_bias", "false is not supported");
  if (!config.get("scale_attn_weights", true)) config.refuse("scale_attn_weights", "false is not supported");
  a.qkv = {"c_attn"};
  a.qkv_bias = true;
  a.out = "c_proj";
  s.mlp.inner /= 2;  // the key counts gate and up together
  s.mlp.in = {"w2", "w1"};
  s.mlp.out = "c_proj";
  s.names = gpt2_names();
  // These keys concern longer texts, or how the reference computes and caches.
  for (const char* key : {"use_dynamic_ntk", "use_logn_attn", "bf16", "fp16", "fp32", "onnx_safe", "softmax_in_fp32",
                          "use_cache_quantization", "use_cache_kernel"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen", .architectures = {"QWenLMHeadModel"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::qwen
