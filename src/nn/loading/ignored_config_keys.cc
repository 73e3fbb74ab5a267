// The table of settled settings.
#include "nn/loading/ignored_config_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/json.h"

namespace sluice {
namespace {

struct Setting {
  std::string_view family;  // empty: any
  std::string_view key;
  std::string_view value = "";  // the only one that is understood, as JSON; empty: all are alike
};

constexpr auto kSettled = std::to_array<Setting>({
    // Of any family: what generate() of transformers, tokenizers and trainers read.
    {"", "cache_implementation"},
    {"", "class_num"},
    {"", "im_end_id"},
    {"", "im_newline_id"},
    {"", "im_start_id"},
    {"", "init_method"},
    {"", "is_llama_config"},
    {"", "logits_to_keep"},
    {"", "mask_init_id"},
    {"", "max_sequence_length"},
    {"", "max_tokenizer_truncation"},
    {"", "model_max_length"},
    {"", "n_ctx"},
    {"", "num_logits_to_keep"},
    {"", "org_vocab_size"},
    {"", "pad_id"},
    {"", "pool_type"},
    {"", "sep_id"},
    {"", "text_end_id"},
    {"", "text_start_id"},
    {"", "tokenizer_name"},
    // And what is off.
    {"", "add_classification_head", "false"},
    {"", "attention_bias", "false"},
    {"", "lm_head_bias", "false"},
    {"", "mlp_bias", "false"},
    {"", "mlp_only_layers", "[]"},
    {"", "qkv_bias", "false"},
    {"", "rope_interleaved", "false"},
    {"", "use_mrope", "false"},
    {"", "use_sliding_window", "false"},

    {"apertus", "post_norm", "false"},
    {"apertus", "qk_norm", "true"},
    {"bloom", "bias_dropout_fusion"},
    {"chatglm", "num_hidden_layers"},  // num_layers
    {"cohere2", "layer_switch"},       // sliding_window_pattern
    {"cohere2", "order_of_interleaved_layers", "\"local_attn_first\""},
    {"cohere2", "position_embedding_type", "\"rope_gptj\""},
    {"cohere2", "rotary_pct", "1.0"},
    {"cohere2", "use_embedding_sharding"},
    {"cohere2", "use_gated_activation", "true"},
    {"cohere2", "use_parallel_block", "true"},
    {"cohere2", "use_parallel_embedding"},
    {"dots1", "moe_layer_freq", "1"},
    {"dots1", "scoring_func", "\"noaux_tc\""},
    {"ernie4_5_moe", "moe_capacity"},
    {"ernie4_5_moe", "moe_gate", "\"topk\""},
    {"ernie4_5_moe", "moe_use_aux_free", "true"},
    {"falcon", "apply_residual_connection_post_layernorm", "false"},
    {"falcon_h1", "mamba_use_mlp", "true"},
    {"falcon_h1", "mlp_expansion_factor"},  // intermediate_size
    {"gemma2", "hidden_act"},               // hidden_activation
    {"gemma2", "sliding_window_size"},      // sliding_window
    {"gpt_bigcode", "pad_key_length"},
    {"gptj", "rotary", "true"},
    {"hunyuan_v1_dense", "attention_head_dim"},
    {"hunyuan_v1_dense", "cla_share_factor"},
    {"hunyuan_v1_dense", "dense_list"},
    {"hunyuan_v1_dense", "norm_type", "\"rms\""},
    {"hunyuan_v1_dense", "routed_scaling_factor"},
    {"hunyuan_v1_dense", "use_cla", "false"},
    {"hunyuan_v1_dense", "use_qk_norm", "true"},
    {"hunyuan_v1_dense", "use_recompute"},
    {"hunyuan_v1_dense", "use_rotary_pos_emb", "true"},
    {"hunyuan_v1_moe", "attention_head_dim"},
    {"hunyuan_v1_moe", "cla_share_factor"},
    {"hunyuan_v1_moe", "dense_list"},
    {"hunyuan_v1_moe", "group_limited_greedy", "false"},
    {"hunyuan_v1_moe", "image_token_id"},
    {"hunyuan_v1_moe", "moe_drop_tokens"},
    {"hunyuan_v1_moe", "moe_layer_num_skipped", "0"},
    {"hunyuan_v1_moe", "moe_random_routing_dropped_token", "false"},
    {"hunyuan_v1_moe", "n_group", "false"},
    {"hunyuan_v1_moe", "norm_topk_prob", "true"},
    {"hunyuan_v1_moe", "norm_type", "\"rms\""},
    {"hunyuan_v1_moe", "num_media_embeds"},
    {"hunyuan_v1_moe", "position_embedding_xdrope", "false"},
    {"hunyuan_v1_moe", "routed_scaling_factor", "false"},
    {"hunyuan_v1_moe", "skip_cls_token"},
    {"hunyuan_v1_moe", "topk_group", "false"},
    {"hunyuan_v1_moe", "use_cla", "false"},
    {"hunyuan_v1_moe", "use_mixed_mlp_moe", "true"},
    {"hunyuan_v1_moe", "use_mla", "false"},
    {"hunyuan_v1_moe", "use_qk_norm", "true"},
    {"hunyuan_v1_moe", "use_recompute"},
    {"hunyuan_v1_moe", "use_rotary_pos_emb", "true"},
    {"hy_v3", "use_grouped_mm"},
    {"llama", "activation", "\"swiglu\""},
    {"mamba2", "intermediate_size"},  // expand
    {"minimax_m2", "layernorm_full_attention_beta", "1.0"},
    {"minimax_m2", "layernorm_linear_attention_beta", "1.0"},
    {"minimax_m2", "layernorm_mlp_beta", "1.0"},
    {"minimax_m2", "mlp_intermediate_size"},  // of shared experts, which it has none of
    {"minimax_m2", "mtp_transformer_layers"},
    {"minimax_m2", "num_mtp_modules"},
    {"minimax_m2", "qk_norm_type", "\"per_layer\""},
    {"minimax_m2", "scoring_func", "\"sigmoid\""},
    {"minimax_m2", "shared_intermediate_size", "0"},
    {"minimax_m2", "shared_moe_mode"},
    {"minimax_m2", "use_mtp"},
    {"minimax_m2", "use_qk_norm", "true"},
    {"minimax_m2", "use_routing_bias", "true"},
    {"nemotron", "kv_channels"},   // head_dim
    {"nemotron", "rope_percent"},  // partial_rotary_factor
    {"nemotron_h", "attention_head_dim"},
    {"nemotron_h", "norm_eps"},  // layer_norm_epsilon
    {"nemotron_h", "num_query_groups"},
    {"nemotron_h", "partial_rotary_factor"},  // nothing is rotated
    {"nemotron_h", "rms_norm_eps"},
    {"nemotron_h", "rope_theta"},
    {"nemotron_h", "time_step_rank"},
    {"phi3", "full_attn_mod", "1"},
    {"phi3", "interpolate_factor", "1"},
    {"qwen3_5", "attn_output_gate", "true"},
    {"qwen3_5", "mamba_ssm_dtype"},
    {"qwen3_5", "mtp_num_hidden_layers"},
    {"qwen3_5", "mtp_use_dedicated_embeddings"},
    {"qwen3_5_moe", "attn_output_gate", "true"},
    {"qwen3_5_moe", "mamba_ssm_dtype"},
    {"qwen3_5_moe", "mtp_num_hidden_layers"},
    {"qwen3_5_moe", "mtp_use_dedicated_embeddings"},
    {"qwen3_moe", "shared_expert_intermediate_size", "0"},
    {"qwen3_moe", "use_qk_norm", "true"},
    {"recurrent_gemma", "_block_types"},
    {"recurrent_gemma", "embeddings_scale_by_sqrt_dim", "true"},
    {"smollm3", "max_window_layers"},
    {"stablelm", "num_heads"},
    {"stablelm", "rotary_scaling_factor", "1.0"},
    {"starcoder2", "layer_norm_eps"},  // norm_epsilon
    {"starcoder2", "mlp_type", "\"default\""},
    {"starcoder2", "norm_type", "\"layer_norm\""},
});

const Setting* find(std::string_view family, std::string_view key) {
  const auto found = std::ranges::find_if(
      kSettled, [&](const Setting& s) { return s.key == key && (s.family.empty() || s.family == family); });
  return found == kSettled.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> unsettled(const Config& config, std::string_view family) {
  std::vector<std::string> out;
  for (const std::string& key : config.unread()) {
    const Setting* setting = find(family, key);
    if (setting == nullptr) {
      out.push_back(fmt::format("'{}'", key));
    } else if (const Json& value = config.values()[key];
               !setting->value.empty() && value != parse_json(setting->value)) {
      out.push_back(fmt::format("'{}' ({}; {} is supported)", key, dump_json(value), setting->value));
    }
  }
  return out;
}

}  // namespace sluice
