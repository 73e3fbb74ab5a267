// TeleChat 1 and 2 (arXiv:2401.03804, arXiv:2507.18013): Llama's graph with keys and values in one projection, and
// biases on the output projections.
#include <fmt/core.h>

#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::telechat {
namespace {

// The reference raises theta by a factor that depends on the length of the text. It is the same for all texts of up to
// training_seqlen tokens, which is therefore the longest text.
RopeSpec read_telechat_rope(const Config& config, const DecoderSpec& s) {
  const int base = read_positive(config, "base_seqlen", config.at<int>("base_seqlen"));
  const double doublings = std::log2(static_cast<double>(s.max_positions) / base) + 1;
  const double alpha = std::max(std::exp2(std::ceil(doublings)) - 1, 1.0);
  RopeSpec rope;
  rope.rotary_dim = s.attention.head_dim;
  if (rope.rotary_dim < 4 || rope.rotary_dim % 2 != 0) {
    config.refuse("n_head", fmt::format("gives heads of {} dimensions, must be even and at least 4", rope.rotary_dim));
  }
  rope.theta *= std::pow(alpha, static_cast<double>(rope.rotary_dim) / (rope.rotary_dim - 2));
  return rope;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(
      config, "telechat",
      {.layers = "n_layer", .heads = "n_head", .inner = "ffn_hidden_size", .max_positions = "training_seqlen"});
  s.norm.eps = static_cast<float>(config.get("layer_norm_epsilon", 1e-5));
  s.tied_head = config.get("tie_word_embeddings", true);
  s.normed_residual = config.get("apply_residual_connection_post_layernorm", false);
  if (config.get("embed_layernorm", false)) config.refuse("embed_layernorm", "true is not supported");
  s.ropes = {read_telechat_rope(config, s)};
  AttentionSpec& a = s.attention;
  a.qkv = {"query", "key_value"};
  for (const int64_t value : {0, 1}) {  // the tensor is stored by head: key, value
    for (int64_t i = 0; i < a.kv_heads; ++i) a.qkv_rows.push_back({(2 * i + value) * a.head_dim, a.head_dim});
  }
  a.out = "dense";
  a.out_bias = s.mlp.out_bias = true;
  s.names.body = "transformer";
  s.names.embedding = "word_embeddings";
  s.names.layers = "h";
  s.names.norm = "ln_f";
  s.names.attention = "self_attention";
  // The reference does not read "logn". The others choose between equivalent computations, or repeat another key.
  for (const char* key :
       {"logn", "flash_attn", "seq_length", "n_inner", "slow_but_exact", "offset_alibi", "masked_softmax_fusion",
        "bias_dropout_fusion", "attention_softmax_in_fp32", "skip_bias_add", "skip_bias_add_qkv"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "telechat", .architectures = {"TeleChatForCausalLM", "TeleChat2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::telechat
