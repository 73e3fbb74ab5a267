// GGUF architectures of mixture-of-experts families of their own, gpt-oss to Llama 4, and of latent attention.
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

// Latent attention. Keys and values have one joint projection, or, in newer files, one matrix per head for each.
constexpr TensorRule kLatent[] = {
    {"blk.{}.attn_q_a", "model.layers.{}.self_attn.q_a_proj"},
    {"blk.{}.attn_q_a_norm", "model.layers.{}.self_attn.q_a_layernorm"},
    {"blk.{}.attn_q_b", "model.layers.{}.self_attn.q_b_proj"},
    {"blk.{}.attn_kv_a_mqa", "model.layers.{}.self_attn.kv_a_proj_with_mqa"},
    {"blk.{}.attn_kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm"},
    {"blk.{}.attn_kv_b", "model.layers.{}.self_attn.kv_b_proj"},
    {"blk.{}.attn_k_b", "model.layers.{}.self_attn.k_b_proj"},
    {"blk.{}.attn_v_b", "model.layers.{}.self_attn.v_b_proj"},
};

// Kimi Linear: delta attention next to latent attention; the experts have different names.
constexpr TensorRule kKimi[] = {
    {"blk.{}.ssm_conv1d_q", "model.layers.{}.self_attn.q_conv1d", kDepthwise},
    {"blk.{}.ssm_conv1d_k", "model.layers.{}.self_attn.k_conv1d", kDepthwise},
    {"blk.{}.ssm_conv1d_v", "model.layers.{}.self_attn.v_conv1d", kDepthwise},
    {"blk.{}.ssm_f_a", "model.layers.{}.self_attn.f_a_proj"},
    {"blk.{}.ssm_f_b", "model.layers.{}.self_attn.f_b_proj"},
    {"blk.{}.ssm_g_a", "model.layers.{}.self_attn.g_a_proj"},
    {"blk.{}.ssm_g_b", "model.layers.{}.self_attn.g_b_proj"},
    {"blk.{}.ssm_beta", "model.layers.{}.self_attn.b_proj"},
    {"blk.{}.ssm_a", "model.layers.{}.self_attn.A_log", kHeadDecays},
    {"blk.{}.ssm_dt", "model.layers.{}.self_attn.dt_bias", kWholeName},
    {"blk.{}.ssm_norm", "model.layers.{}.self_attn.o_norm"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"},
    {"blk.{}.exp_probs_b", "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias", kWholeName},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w1", kExperts},
    {"blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w3", kExperts},
    {"blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w2", kExperts},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.block_sparse_moe.shared_experts.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.block_sparse_moe.shared_experts.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.block_sparse_moe.shared_experts.down_proj"},
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

// Reads head sizes. In files with separate projections of keys and values, the usual keys hold the sizes of the latent
// vectors.
void read_latent_sizes(GgufConfig& c) {
  const bool split = c.has("attention.key_length_mla");
  const int64_t rotary = c.integer("rope.dimension_count");
  const int64_t key = c.integer(split ? "attention.key_length_mla" : "attention.key_length");
  if (rotary < 1 || key <= rotary) c.refuse("attention.key_length", "must be greater than rope.dimension_count");
  c.ignore({"attention.key_length", "attention.value_length", "attention.head_count_kv"});
  c.hf["qk_rope_head_dim"] = rotary;
  c.hf["qk_nope_head_dim"] = key - rotary;
  c.hf["v_head_dim"] = c.integer(split ? "attention.value_length_mla" : "attention.value_length");
  c.integer("attention.kv_lora_rank", "kv_lora_rank");
  c.hf["q_lora_rank"] = nullptr;
  c.integer("attention.q_lora_rank", "q_lora_rank", false);
  c.rope(rotary);
}

void configure_deepseek2(GgufConfig& c) {
  const bool third = c.gating() == Gating::kSigmoid;
  c.architecture(third ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM", third ? "deepseek_v3" : "deepseek_v2");
  c.sizes();
  c.integer("attention.head_count", "num_attention_heads");
  read_latent_sizes(c);
  c.hf["attention_bias"] = c.has_tensor("blk.0.attn_kv_a_mqa.bias");
  c.rms_norm();
  c.integer("feed_forward_length", "intermediate_size");
  // The converter writes a tenth of mscale_all_dim. llama.cpp assumes that mscale is equal when it is not 1.
  if (const double tenth = c.number_or("rope.scaling.yarn_log_multiplier", 0.0); tenth != 0) {
    c.yarn_scales(10 * tenth, 10 * tenth);
  }
  if (third) {
    read_deepseek_experts(c);
  } else {
    read_expert_sizes(c);
    const int64_t groups = c.integer_or("expert_group_count", 1);
    c.hf["topk_method"] = groups > 1 ? "group_limited_greedy" : "greedy";
    c.hf["n_group"] = groups;
    c.integer("expert_group_used_count", "topk_group", false);
  }
  c.tensors.insert(c.tensors.begin(), kLatent);
}

// Layers without kv heads use delta attention, with as many heads as the other layers. There is no rotary embedding.
void configure_kimi_linear(GgufConfig& c) {
  c.architecture("KimiLinearForCausalLM", "kimi_linear");
  c.sizes();
  c.integer("attention.head_count", "num_attention_heads");
  const std::vector<int64_t> kv_heads = c.of_layers("attention.head_count_kv");
  read_latent_sizes(c);
  c.rms_norm();
  c.integer("feed_forward_length", "intermediate_size");
  read_deepseek_experts(c);
  c.rename("n_routed_experts", "num_experts");
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", true);
  Json full = Json::array(), delta = Json::array();
  for (size_t i = 0; i < kv_heads.size(); ++i) (kv_heads[i] != 0 ? full : delta).push_back(i + 1);
  Json linear = {{"full_attn_layers", std::move(full)}, {"kda_layers", std::move(delta)}};
  linear["num_heads"] = c.hf["num_attention_heads"];
  linear["head_dim"] = c.integer("kda.head_dim");
  linear["short_conv_kernel_size"] = c.integer("ssm.conv_kernel");
  c.hf["linear_attn_config"] = std::move(linear);
  c.tensors = {kKimi, kLatent, kLlamaTensors};
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

// MiniCPM 3. Its factors are the same in all its models and not stored in files.
void configure_minicpm3(GgufConfig& c) {
  c.architecture("MiniCPM3ForCausalLM", "minicpm3");
  c.sizes();
  c.integer("attention.head_count", "num_attention_heads");
  c.integer("feed_forward_length", "intermediate_size");
  c.rms_norm();
  const int64_t rotary = c.integer("rope.dimension_count"), key = c.integer("attention.key_length");
  if (rotary < 1 || key <= rotary) c.refuse("attention.key_length", "must be greater than rope.dimension_count");
  c.hf["qk_rope_head_dim"] = rotary;
  c.hf["qk_nope_head_dim"] = key - rotary;
  if (c.has("attention.value_length")) c.integer("attention.value_length", "v_head_dim");
  c.ignore({"attention.head_count_kv"});
  c.integer("attention.kv_lora_rank", "kv_lora_rank");
  c.integer("attention.q_lora_rank", "q_lora_rank");
  c.rope(rotary);
  c.tensors = {kLatent, kLlamaTensors};
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

constexpr GgufArchitecture kArchitectures[] = {
    {"gpt-oss", configure_gpt_oss},
    {"deepseek", configure_deepseek},
    {"dbrx", configure_dbrx},
    {"deepseek2", configure_deepseek2},
    {"minimax-m2", configure_minimax_m2},
    {"minicpm3", configure_minicpm3},
    {"exaone-moe", configure_exaone_moe},
    {"afmoe", configure_afmoe},
    {"llama4", configure_llama4},
    {"kimi-linear", configure_kimi_linear},
    {"bailingmoe2", configure_bailingmoe2},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::experts
