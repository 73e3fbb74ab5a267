// Bailing MoE: Ling, Ring and Ming of inclusionAI. The first generation chooses experts by softmax (arXiv:2503.05139).
// The second chooses them by sigmoid scores with corrections in the best groups, and norms queries and keys
// (arXiv:2510.22115). Sarvam 30B (Sarvam AI, 2026) and Param 2 (BharatGen, 2026) are the same graph with other
// defaults.
#include "nn/decoder_config.h"

namespace sluice::models::bailing_moe {
namespace {

void refuse_other(const Config& config, const char* key, const std::string& wanted) {
  const auto value = config.get(key, wanted);
  if (value != wanted) config.refuse(key, "must be " + wanted + ", not '" + value + "'");
}

// Reads everything except the experts' scores.
DecoderSpec bailing_like(const Config& config, std::string family) {
  DecoderSpec s = llama_like(config, std::move(family));
  const bool bias = config.get("use_bias", false);
  if (bias) config.refuse("use_bias", "true is not supported: experts have none");
  AttentionSpec& a = s.attention;
  a.qkv_bias = config.get("use_qkv_bias", false);
  a.qkv = {"query_key_value"};
  a.out = "dense";
  a.q_norm = "query_layernorm";
  a.k_norm = "key_layernorm";
  if (config.get("use_qk_norm", false)) a.qk_norm = QkNorm::kHead;
  s.names.attention = "attention";
  s.names.embedding = "word_embeddings";
  if (config.get("norm_head", false)) config.refuse("norm_head", "true is not supported");
  if (!config.get("use_rmsnorm", true)) config.refuse("use_rmsnorm", "false is not supported");
  if (config.get("norm_softmax", false)) config.refuse("norm_softmax", "true is not supported");
  if (config.get("use_sliding_window", false)) config.refuse("use_sliding_window", "true is not supported");
  // These keys belong to windows that are off, multi-token-prediction layers, dropout, and precision in the reference.
  for (const char* key : {"sliding_window", "max_window_layers", "mtp_loss_scaling_factor", "output_dropout",
                          "embedding_dropout", "router_dtype", "rotary_dim", "rotary_type"}) {
    config.ignore(key);
  }
  return s;
}

void finish_experts(const Config& config, DecoderSpec& s, int inner) {
  const int shared = config.get("num_shared_experts", 0);
  if (shared < 0) config.refuse("num_shared_experts", "must not be negative");
  const int width = config.get("moe_shared_expert_intermediate_size", inner);
  s.moe.shared_inner = shared * width;
}

std::unique_ptr<Model> build_first(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = bailing_like(config, "bailing_moe");
  refuse_other(config, "score_function", "softmax");
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1408));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  s.moe.normalize = config.get("norm_topk_prob", true) && s.moe.top_k > 1;
  finish_experts(config, s, inner);
  const int dense = config.get("first_k_dense_replace", 0);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense;
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

// Reads the second generation. `defaults`: of the experts.
DecoderSpec second_like(const Config& config, LoadContext& context, std::string family, DeepseekExpertKeys defaults) {
  DecoderSpec s = bailing_like(config, std::move(family));
  refuse_other(config, "score_function", "sigmoid");
  defaults.experts = "num_experts";
  defaults.shared = "num_shared_experts";
  read_deepseek_experts(config, s, true, defaults);
  s.moe.correction = config.get("moe_router_enable_expert_bias", true) ? "gate.expert_bias" : "";
  ignore_prediction_layers(config, context, s);
  return s;
}

std::unique_ptr<Model> build_second(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = second_like(config, context, "bailing_moe_v2", {});
  finish_experts(config, s, s.moe.inner);
  return decoder_lm(std::move(s), context, max_len);
}

// Some implementations subtract the mean of the corrections. The choice of experts stays the same.
std::unique_ptr<Model> build_sarvam(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      second_like(config, context, "sarvam_moe", {.default_shared = 1, .default_dense = 1, .default_scale = 2.5f});
  if (config.get("use_qk_norm", true)) s.attention.qk_norm = QkNorm::kHead;
  const int width = config.get("moe_shared_expert_intermediate_size", s.moe.inner);
  s.moe.shared_inner = s.moe.shared_inner / s.moe.inner * width;
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build_param2(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = second_like(config, context, "param2moe", {.default_shared = 1, .default_dense = 1});
  // the width of all shared experts together
  s.moe.shared_inner = config.get("moe_shared_expert_intermediate_size", s.moe.shared_inner);
  if (s.moe.shared_inner < 0) config.refuse("moe_shared_expert_intermediate_size", "must not be negative");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily first{.name = "bailing_moe", .architectures = {"BailingMoeForCausalLM"}, .build = build_first};
const ModelFamily second{.name = "bailing_moe_v2", .architectures = {"BailingMoeV2ForCausalLM"}, .build = build_second};
const ModelFamily sarvam{.name = "sarvam_moe",
                         .architectures = {"SarvamMoEForCausalLM"},
                         .build = build_sarvam,
                         .ignored = {{"attn_implementation"}}};
const ModelFamily param2{.name = "param2moe", .architectures = {"Param2MoEForCausalLM"}, .build = build_param2};
const Registry<ModelFamily> registered_first{first}, registered_second{second}, registered_sarvam{sarvam},
    registered_param2{param2};

}  // namespace
}  // namespace sluice::models::bailing_moe
