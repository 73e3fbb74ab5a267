// StarCoder 1 and SantaCoder: GPT-2 with one key and value for all heads (arXiv:2305.06161).
#include "nn/decoder_config.h"

namespace sluice {
namespace {

constexpr SizeKeys kKeys{.hidden = "n_embd",
                         .layers = "n_layer",
                         .heads = "n_head",
                         .kv_heads = nullptr,
                         .inner = "n_inner",
                         .inner_is_four_hidden = true,
                         .max_positions = "n_positions",
                         .default_max_positions = 1024};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "gpt_bigcode", kKeys);
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kLearned;
  AttentionSpec& a = s.attention;
  const bool multi_query = config.get("multi_query", true);
  if (multi_query) a.kv_heads = 1;
  if (config.get("num_key_value_heads", a.kv_heads) != a.kv_heads)
    config.refuse("num_key_value_heads", "contradicts multi_query");
  a.qkv = {"c_attn"};
  if (!multi_query) a.qkv_rows = grouped_qkv_rows(a);
  a.out = "c_proj";
  a.qkv_bias = a.out_bias = s.mlp.bias = true;
  if (!config.get("scale_attn_weights", true)) a.scale = 1.0f;
  s.mlp.activation = read_activation(config, "activation_function", "gelu_pytorch_tanh");
  s.mlp.gated = false;
  s.mlp.in = {"c_fc"};
  s.mlp.out = "c_proj";
  s.names = {.body = "transformer",
             .embedding = "wte",
             .position_table = "wpe",
             .layers = "h",
             .norm = "ln_f",
             .attention = "attn",
             .attention_norm = "ln_1",
             .mlp_norm = "ln_2"};
  // Precision and memory of the reference, and heads for classification.
  for (const char* key :
       {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner", "validate_runner_input",
        "pre_allocate_kv_cache", "max_sequence_length", "max_batch_size", "n_ctx", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gpt_bigcode", .architectures = {"GPTBigCodeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
