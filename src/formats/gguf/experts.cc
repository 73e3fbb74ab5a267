// GGUF architectures of mixture-of-experts families of their own, gpt-oss to Hunyuan 3.
#include <fmt/core.h>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::experts {
namespace {

using enum TensorForm;

constexpr TensorRule kGptOss[] = {
    {"blk.{}.attn_sinks", "model.layers.{}.self_attn.sinks", kWholeName},
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.gate_up_proj", kGateRows},
    {"blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.gate_up_proj", kUpRows},
    {"blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.down_proj"},
};

constexpr TensorRule kMinimax[] = {
    {"blk.{}.exp_probs_b", "model.layers.{}.block_sparse_moe.e_score_correction_bias", kWholeName},
};

constexpr TensorRule kBailing2[] = {
    {"token_embd", "model.word_embeddings"},
    {"blk.{}.attn_qkv", "model.layers.{}.attention.query_key_value"},
    {"blk.{}.attn_output", "model.layers.{}.attention.dense"},
    {"blk.{}.attn_q_norm", "model.layers.{}.attention.query_layernorm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.attention.key_layernorm"},
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.gate.expert_bias", kWholeName},
};

constexpr TensorRule kHy3[] = {
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router.gate"},
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.expert_bias", kWholeName},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_mlp.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_mlp.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_mlp.down_proj"},
};

constexpr TensorRule kCohere2Moe[] = {
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj"},
};

constexpr TensorRule kMimo2[] = {
    {"blk.{}.attn_sinks", "model.layers.{}.self_attn.attention_sink_bias", kWholeName},
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.gate.e_score_correction_bias", kWholeName},
};

constexpr TensorRule kExaoneMoe[] = {
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.e_score_correction_bias", kWholeName},
};

constexpr TensorRule kAfmoe[] = {
    {"blk.{}.attn_gate", "model.layers.{}.self_attn.gate_proj"},
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_mlp_layernorm"},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_mlp_layernorm"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router.gate"},
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.expert_bias", kWholeName},
};

constexpr TensorRule kDbrx[] = {
    {"token_embd", "transformer.wte"},
    {"output_norm", "transformer.norm_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.blocks.{}.norm_attn_norm.norm_1"},
    {"blk.{}.attn_qkv", "transformer.blocks.{}.norm_attn_norm.attn.Wqkv"},
    {"blk.{}.attn_output", "transformer.blocks.{}.norm_attn_norm.attn.out_proj"},
    {"blk.{}.attn_output_norm", "transformer.blocks.{}.norm_attn_norm.norm_2"},
    {"blk.{}.ffn_gate_inp", "transformer.blocks.{}.ffn.router.layer"},
    {"blk.{}.ffn_gate_exps", "transformer.blocks.{}.ffn.experts.mlp.w1", kGateRows},
    {"blk.{}.ffn_up_exps", "transformer.blocks.{}.ffn.experts.mlp.w1", kUpRows},
    {"blk.{}.ffn_down_exps", "transformer.blocks.{}.ffn.experts.mlp.w2"},
};

constexpr TensorRule kLlama4[] = {
    {"blk.{}.ffn_gate", "model.layers.{}.feed_forward.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.feed_forward.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.feed_forward.down_proj"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.router"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.feed_forward.experts.gate_up_proj", kGateRows},
    {"blk.{}.ffn_up_exps", "model.layers.{}.feed_forward.experts.gate_up_proj", kUpRows},
    {"blk.{}.ffn_down_exps", "model.layers.{}.feed_forward.experts.down_proj"},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.feed_forward.shared_expert.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.feed_forward.shared_expert.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.feed_forward.shared_expert.down_proj"},
};

void configure_gpt_oss(GgufConfig& c) {
  configure_llama_like(c, "GptOssForCausalLM", "gpt_oss");
  c.windows(2);
  c.experts("num_local_experts", "intermediate_size");
  // Follows the model's authors. llama.cpp rounds the limits of the ramp.
  if (c.hf.contains("rope_scaling") && c.hf["rope_scaling"]["rope_type"] == "yarn") {
    c.hf["rope_scaling"]["truncate"] = false;
  }
  c.tensors = {kGptOss, kLlamaTensors};
}

void configure_minimax_m2(GgufConfig& c) {
  configure_llama_like(c, "MiniMaxM2ForCausalLM", "minimax_m2");
  c.require_gating(Gating::kSigmoid);
  c.experts("num_local_experts", "intermediate_size");
  c.rename("partial_rotary_factor", "");
  c.integer("rope.dimension_count", "rotary_dim", false);
  c.tensors = {kMinimax, kMixtralTensors, kLlamaTensors};
}

void configure_deepseek(GgufConfig& c) {
  configure_llama_like(c, "DeepseekForCausalLM", "deepseek");
  c.hf["attention_bias"] = c.has_bias();
  c.require_gating(Gating::kSoftmax);
  if (c.number_or("expert_weights_scale", 1.0) != 1.0) c.refuse("expert_weights_scale", "must be 1");
  read_expert_sizes(c);
  c.rename("routed_scaling_factor", "");
  c.tensors.insert(c.tensors.begin(), kPairedTensors);
}

void configure_exaone_moe(GgufConfig& c) {
  configure_llama_like(c, "ExaoneMoeForCausalLM", "exaone_moe");
  c.windows(4);
  read_deepseek_experts(c);
  c.rename("n_routed_experts", "num_experts");
  c.rename("n_shared_experts", "num_shared_experts");
  c.tensors.insert(c.tensors.begin(), kExaoneMoe);
}

// Ling and Ring 2. All published models have one shared expert; with several, files do not record the width of each.
void configure_bailingmoe2(GgufConfig& c) {
  configure_llama_like(c, "BailingMoeV2ForCausalLM", "bailing_moe_v2");
  c.integer("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size");
  read_deepseek_experts(c);
  if (c.integer_or("expert_shared_count", 1) != 1) c.refuse("expert_shared_count", "must be 1");
  c.rename("n_routed_experts", "num_experts");
  c.rename("n_shared_experts", "num_shared_experts");
  c.hf["use_qk_norm"] = c.has_tensor("blk.0.attn_q_norm.weight");
  c.hf["use_qkv_bias"] = c.has_tensor("blk.0.attn_qkv.bias");
  c.tensors.insert(c.tensors.begin(), kBailing2);
}

// Which layers have experts: those with a router.
Json kinds_of_mlps(const GgufConfig& c) {
  Json kinds = Json::array();
  for (int64_t i = 0; i < c.layers(); ++i) {
    kinds.push_back(c.has_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", i)) ? "sparse" : "dense");
  }
  return kinds;
}

// Reads how many shared experts there are of their width together. Returns 0 if the file names none.
int64_t shared_experts(GgufConfig& c, int64_t inner) {
  const int64_t width = c.integer_or("expert_shared_feed_forward_length", 0);
  if (inner < 1 || width < 0 || width % inner != 0) {
    c.refuse("expert_shared_feed_forward_length", "must be a multiple of expert_feed_forward_length");
  }
  return width / inner;
}

void configure_hy_v3(GgufConfig& c) {
  configure_llama_like(c, "HYV3ForCausalLM", "hy_v3");
  c.hf["attention_bias"] = c.has_bias();
  c.require_gating(Gating::kSigmoid);
  c.experts("num_experts", "moe_intermediate_size");
  c.hf["num_shared_experts"] = shared_experts(c, c.hf["moe_intermediate_size"].get<int64_t>());
  if (!c.boolean_or("expert_weights_norm", true)) c.refuse("expert_weights_norm", "must be true");
  c.hf["router_scaling_factor"] = c.number_or("expert_weights_scale", 1.0);
  c.ignore({"expert_shared_count", "leading_dense_block_count"});  // seen in the tensors
  c.hf["mlp_layer_types"] = kinds_of_mlps(c);
  c.tensors = {kHy3, kExpertTensors, kLlamaTensors};
}

// Mellum 2. Layers with a window have a rotation of their own, which is not scaled.
void configure_mellum(GgufConfig& c) {
  configure_llama_like(c, "MellumForCausalLM", "mellum");
  c.hf["attention_bias"] = c.has_bias();
  c.windows(4);
  Json full = c.hf.value("rope_scaling", Json{{"rope_type", "default"}});
  full["rope_theta"] = c.hf["rope_theta"];
  const double theta = c.number_or("rope.freq_base_swa", c.hf["rope_theta"].get<double>());
  c.hf["rope_parameters"] = {{"full_attention", std::move(full)},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", theta}}}};
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) c.rename(key, "");
  c.require_gating(Gating::kSoftmax);
  c.experts("num_experts", "moe_intermediate_size");
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", true);
  c.hf["mlp_layer_types"] = kinds_of_mlps(c);
  c.tensors = {kExpertTensors, kLlamaTensors};
}

// Command A with experts. Shared experts are averaged with the others. Layers without a window are not rotated, but
// dense ones are. With a softmax, the weights of the chosen experts add up to one.
void configure_cohere2moe(GgufConfig& c) {
  configure_llama_like(c, "Cohere2MoeForCausalLM", "cohere2_moe");
  c.windows(4);
  if (!c.has("attention.layer_norm_rms_epsilon")) c.hf["rms_norm_eps"] = nullptr;
  if (c.has("attention.layer_norm_epsilon")) c.layer_norm("layer_norm_eps");
  c.number("logit_scale", "logit_scale");
  c.experts("num_experts", "intermediate_size");
  c.hf["num_shared_experts"] = shared_experts(c, c.hf["intermediate_size"].get<int64_t>());
  c.ignore({"expert_shared_count"});
  c.hf["shared_expert_combination_strategy"] = "average";
  c.hf["expert_selection_fn"] = c.gating() == Gating::kSigmoid ? "sigmoid" : "softmax";
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", false);
  if (c.number_or("expert_weights_scale", 1.0) != 1.0) c.refuse("expert_weights_scale", "must be 1");
  c.hf["first_k_dense_replace"] = c.integer_or("leading_dense_block_count", 0);
  c.hf["mlp_layer_types"] = kinds_of_mlps(c);
  if (const TensorEntry* gate = c.tensor("blk.0.ffn_gate.weight")) {
    c.hf["prefix_dense_intermediate_size"] = gate->shape[0];
  }
  c.tensors = {kCohere2Moe, kExpertTensors, kLlamaTensors};
}

// The kv heads of the layers of a kind, which must have equally many; `fallback` if there are none.
int64_t kv_heads_of(GgufConfig& c, const std::vector<int64_t>& kv_heads, const char* kind, int64_t fallback) {
  int64_t found = 0;
  for (size_t i = 0; i < kv_heads.size(); ++i) {
    if (c.hf["layer_types"][i] != kind) continue;
    if (kv_heads[i] == 0 || (found != 0 && found != kv_heads[i])) {
      c.refuse("attention.head_count_kv", fmt::format("must be equal in all layers of {}", kind));
    }
    found = kv_heads[i];
  }
  return found != 0 ? found : fallback;
}

// MiMo V2 with separate projections. Layers with a window have kv heads, a rotation and sinks of their own.
void configure_mimo2(GgufConfig& c) {
  c.architecture("MiMoV2FlashForCausalLM", "mimo_v2_flash");
  c.sizes();
  const std::vector<int64_t> kv_heads = c.heads_by_layer();
  c.integer("attention.value_length", "v_head_dim");
  c.windows(6);
  const int64_t full = kv_heads_of(c, kv_heads, "full_attention", kv_heads.front());
  c.hf["num_key_value_heads"] = full;
  c.hf["swa_num_key_value_heads"] = kv_heads_of(c, kv_heads, "sliding_attention", full);
  c.hf["add_swa_attention_sink_bias"] = false;
  for (int64_t i = 0; i < c.layers(); ++i) {
    if (c.has_tensor(fmt::format("blk.{}.attn_sinks.weight", i))) c.hf["add_swa_attention_sink_bias"] = true;
  }
  c.rope();
  c.hf["swa_rope_theta"] = c.number_or("rope.freq_base_swa", c.hf["rope_theta"].get<double>());
  c.rms_norm();
  c.hf["attention_value_scale"] = c.number_or("attention.value_scale", 1.0);
  c.integer("feed_forward_length", "intermediate_size");
  c.require_gating(Gating::kSigmoid);
  c.experts("n_routed_experts", "moe_intermediate_size");
  if (!c.boolean_or("expert_weights_norm", true)) c.refuse("expert_weights_norm", "must be true");
  c.hf["norm_topk_prob"] = true;
  c.hf["routed_scaling_factor"] = c.number_or("expert_weights_scale", 1.0);
  for (const char* key : {"expert_group_count", "expert_group_used_count"}) {
    if (c.integer_or(key, 1) != 1) c.refuse(key, "must be 1");
  }
  c.hf["n_group"] = c.hf["topk_group"] = 1;
  c.hf["mlp_layer_types"] = kinds_of_mlps(c);
  c.tensors = {kMimo2, kExpertTensors, kLlamaTensors};
}

// All its models scale embeddings; files do not record that.
void configure_afmoe(GgufConfig& c) {
  configure_llama_like(c, "AfmoeForCausalLM", "afmoe");
  c.windows(4);
  c.hf["mup_enabled"] = true;
  read_deepseek_experts(c);
  for (const auto& [from, to] : {std::pair{"n_routed_experts", "num_experts"},
                                 {"n_shared_experts", "num_shared_experts"},
                                 {"first_k_dense_replace", "num_dense_layers"},
                                 {"routed_scaling_factor", "route_scale"},
                                 {"norm_topk_prob", "route_norm"}}) {
    c.rename(from, to);
  }
  c.tensors.insert(c.tensors.begin(), kAfmoe);
}

// Chunks, temperatures and norms of queries and keys follow the published models, because files do not record them. The
// exception is a window of 0, which means attention without chunks.
void configure_llama4(GgufConfig& c) {
  configure_llama_like(c, "Llama4ForCausalLM", "llama4_text");
  c.rename("intermediate_size", "intermediate_size_mlp");
  c.experts("num_local_experts", "intermediate_size");
  c.integer("interleave_moe_layer_step", "interleave_moe_layer_step");
  if (c.integer_or("leading_dense_block_count", 0) != 0) c.refuse("leading_dense_block_count", "must be 0");
  c.ignore({"expert_shared_feed_forward_length", "expert_shared_count"});
  constexpr int64_t kMaverickExperts = 128;
  c.hf["use_qk_norm"] = c.hf["num_local_experts"] != kMaverickExperts;
  c.hf["no_rope_layer_interval"] = c.integer_or("attention.sliding_window_pattern", 4);
  if (c.integer_or("attention.sliding_window", 8192) == 0) c.refuse("attention.sliding_window", "0 is not supported");
  c.tensors = {kLlama4, kLlamaTensors};
}

// The weights of the selected experts add up to one in all its models.
void configure_dbrx(GgufConfig& c) {
  configure_llama_like(c, "DbrxForCausalLM", "dbrx");
  c.ignore({"attention.layer_norm_epsilon"});  // always 1e-5
  c.experts("moe_num_experts", nullptr);
  c.hf["attn_config"] = {{"kv_n_heads", c.hf["num_key_value_heads"]}, {"rope_theta", c.hf["rope_theta"]}};
  if (const double clip = c.number_or("attention.clamp_kqv", 0.0); clip != 0) c.hf["attn_config"]["clip_qkv"] = clip;
  c.hf["ffn_config"] = {{"ffn_hidden_size", c.hf["intermediate_size"]},
                        {"moe_num_experts", c.hf["moe_num_experts"]},
                        {"moe_top_k", c.hf["num_experts_per_tok"]},
                        {"moe_normalize_expert_weights", 1.0}};
  for (const auto& [from, to] : {std::pair{"hidden_size", "d_model"},
                                 {"num_hidden_layers", "n_layers"},
                                 {"num_attention_heads", "n_heads"},
                                 {"max_position_embeddings", "max_seq_len"},
                                 {"intermediate_size", ""},
                                 {"num_key_value_heads", ""},
                                 {"rope_theta", ""},
                                 {"head_dim", ""},
                                 {"moe_num_experts", ""},
                                 {"num_experts_per_tok", ""}}) {
    c.rename(from, to);
  }
  c.tensors = {kDbrx};
}

// The converter splits and pairs the fused projection of Ling 1 (bailingmoe), which makes it DeepSeek's first graph.
constexpr GgufArchitecture kArchitectures[] = {
    {"gpt-oss", configure_gpt_oss},       {"deepseek", configure_deepseek},     {"dbrx", configure_dbrx},
    {"minimax-m2", configure_minimax_m2}, {"exaone-moe", configure_exaone_moe}, {"afmoe", configure_afmoe},
    {"llama4", configure_llama4},         {"bailingmoe", configure_deepseek},   {"bailingmoe2", configure_bailingmoe2},
    {"hy_v3", configure_hy_v3},           {"mellum", configure_mellum},         {"mimo2", configure_mimo2},
    {"cohere2moe", configure_cohere2moe},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::experts
