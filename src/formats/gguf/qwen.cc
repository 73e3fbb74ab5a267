// GGUF architectures of Qwen, and of families that differ little from it.
#include "formats/gguf/architecture.h"

namespace sluice {
namespace {

using enum TensorForm;

constexpr TensorRule kQwenShared[] = {
    {"blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate", kOneRow},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_expert.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_expert.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_expert.down_proj"},
};

// DeepSeek-V3's names of shared experts and of the routing's correction bias.
constexpr TensorRule kSharedExperts[] = {
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj"},
};
constexpr TensorRule kCorrections[] = {
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.gate.e_score_correction_bias", kWholeName},
};

// Delta nets, and Llama's norms stored as 1 + weight.
constexpr TensorRule kQwen3Next[] = {
    {"output_norm", "model.norm", kPlusOne},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", kPlusOne},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", kPlusOne},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", kPlusOne},
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
    {"blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv"},
    {"blk.{}.attn_gate", "model.layers.{}.linear_attn.in_proj_z"},
    {"blk.{}.ssm_ba", "model.layers.{}.linear_attn.in_proj_ba", kSplitBa},
    {"blk.{}.ssm_conv1d", "model.layers.{}.linear_attn.conv1d", kDepthwise},
    {"blk.{}.ssm_dt", "model.layers.{}.linear_attn.dt_bias", kWholeName},
    {"blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log", kDecays},
    {"blk.{}.ssm_norm", "model.layers.{}.linear_attn.norm"},
    {"blk.{}.ssm_out", "model.layers.{}.linear_attn.out_proj"},
};

constexpr TensorRule kQwen35[] = {
    {"blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv", kRepeatKeys},
    {"blk.{}.ssm_conv1d", "model.layers.{}.linear_attn.conv1d", kRepeatTaps},
    {"blk.{}.ssm_beta", "model.layers.{}.linear_attn.in_proj_b"},
    {"blk.{}.ssm_alpha", "model.layers.{}.linear_attn.in_proj_a"},
};

constexpr TensorRule kGlm4[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_self_attn_layernorm"},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_mlp_layernorm"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
};

constexpr TensorRule kChatGlm[] = {
    {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj", kSplitQkv},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
};

constexpr TensorRule kGlm4Moe[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
};
// A block that predicts further tokens. Its embedding and head are the model's.
constexpr TensorRule kGlm4MoePredicting[] = {
    {"blk.{}.nextn.eh_proj", "model.layers.{}.eh_proj"},
    {"blk.{}.nextn.enorm", "model.layers.{}.enorm"},
    {"blk.{}.nextn.hnorm", "model.layers.{}.hnorm"},
    {"blk.{}.nextn.shared_head_norm", "model.layers.{}.shared_head.norm"},
};
constexpr TensorRule kSeedOss[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
};

constexpr TensorRule kErnieMoe[] = {
    {"blk.{}.exp_probs_b", "model.layers.{}.mlp.moe_statics.e_score_correction_bias", kWholeOneRow},
};

constexpr TensorRule kHunyuan[] = {
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.query_layernorm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.key_layernorm"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate.wg"},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_mlp.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_mlp.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_mlp.down_proj"},
};

void configure_qwen2(GgufConfig& c) { configure_llama_like(c, "Qwen2ForCausalLM", "qwen2"); }

void configure_qwen2moe(GgufConfig& c) {
  configure_llama_like(c, "Qwen2MoeForCausalLM", "qwen2_moe");
  c.experts("num_experts", "moe_intermediate_size");
  c.integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", false);
  c.tensors = {kQwenShared, kExpertTensors, kLlamaTensors};
}

void configure_qwen3(GgufConfig& c) {
  configure_llama_like(c, "Qwen3ForCausalLM", "qwen3");
  c.hf["attention_bias"] = c.has_bias();
}

void configure_qwen3moe(GgufConfig& c) {
  configure_llama_like(c, "Qwen3MoeForCausalLM", "qwen3_moe");
  c.hf["attention_bias"] = c.has_bias();
  c.experts("num_experts", "moe_intermediate_size");
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", true);
  c.tensors = {kExpertTensors, kLlamaTensors};
}

// Text decoders of image models. The three kinds of positions are equal for text, and the extra inputs of layers are
// only for images.
void ignore_images(GgufConfig& c) { c.ignore({"rope.dimension_sections", "n_deepstack_layers"}); }

void configure_qwen2vl(GgufConfig& c) {
  configure_qwen2(c);
  ignore_images(c);
}

void configure_qwen3vl(GgufConfig& c) {
  configure_qwen3(c);
  ignore_images(c);
}

void configure_qwen3vlmoe(GgufConfig& c) {
  configure_qwen3moe(c);
  ignore_images(c);
}

// Reads the sizes of the delta nets.
void read_delta_net(GgufConfig& c) {
  c.integer("ssm.conv_kernel", "linear_conv_kernel_dim");
  c.integer("ssm.state_size", "linear_key_head_dim");
  c.integer("ssm.group_count", "linear_num_key_heads");
  c.integer("ssm.time_step_rank", "linear_num_value_heads");
  const int64_t heads = c.integer("ssm.time_step_rank"), inner = c.integer("ssm.inner_size");
  if (heads < 1 || inner % heads != 0) c.refuse("ssm.time_step_rank", "must be a divisor of ssm.inner_size");
  c.hf["linear_value_head_dim"] = inner / heads;
  c.groups = c.integer("ssm.group_count");
  if (c.groups < 1 || heads % c.groups != 0) c.refuse("ssm.group_count", "must be a divisor of ssm.time_step_rank");
  c.integer("full_attention_interval", "full_attention_interval", false);
}

void read_qwen35(GgufConfig& c) {
  ignore_images(c);
  read_delta_net(c);
  const int64_t heads = c.integer("ssm.time_step_rank");
  c.repeats = heads / c.groups;
  c.key_rows = c.groups * c.integer("ssm.state_size");
  c.hf["linear_num_key_heads"] = heads;
}

void configure_qwen35(GgufConfig& c) {
  configure_llama_like(c, "Qwen3_5ForCausalLM", "qwen3_5_text");
  read_qwen35(c);
  c.tensors = {kQwen35, kQwen3Next, kLlamaTensors};
}

void configure_qwen35moe(GgufConfig& c) {
  c.architecture("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text");
  c.sizes();
  c.heads();
  c.rope();
  c.rms_norm();
  read_qwen35(c);
  c.experts("num_experts", "moe_intermediate_size");
  c.integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  c.hf["intermediate_size"] = c.integer_or("feed_forward_length", c.hf["moe_intermediate_size"].get<int64_t>());
  c.tensors = {kQwen35, kQwen3Next, kQwenShared, kExpertTensors, kLlamaTensors};
}

// Its projections are stored as in Qwen 3.5, and the graph is the same.
void configure_qwen3next(GgufConfig& c) {
  configure_llama_like(c, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text");
  read_delta_net(c);
  c.experts("num_experts", "moe_intermediate_size");
  c.integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
  if (!c.boolean_or("expert_weights_norm", true)) c.refuse("expert_weights_norm", "must be true");
  c.tensors = {kQwen3Next, kQwenShared, kExpertTensors, kLlamaTensors};
}

void configure_seed_oss(GgufConfig& c) {
  configure_llama_like(c, "SeedOssForCausalLM", "seed_oss");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["attention_out_bias"] = c.has_tensor("blk.0.attn_output.bias");
  c.tensors = {kSeedOss, kLlamaTensors};
}

void configure_glm4(GgufConfig& c) {
  configure_llama_like(c, "Glm4ForCausalLM", "glm4");
  c.hf["attention_bias"] = c.has_bias();
  c.tensors = {kGlm4, kLlamaTensors};
}

void configure_chatglm(GgufConfig& c) {
  configure_llama_like(c, "GlmForCausalLM", "glm");
  c.hf["attention_bias"] = c.has_bias() || c.has_tensor("blk.0.attn_qkv.bias");
  c.tensors = {kChatGlm, kLlamaTensors};
}

void configure_dots1(GgufConfig& c) {
  configure_llama_like(c, "Dots1ForCausalLM", "dots1");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["sliding_window"] = nullptr;
  read_deepseek_experts(c);
}

void configure_glm4moe(GgufConfig& c) {
  configure_llama_like(c, "Glm4MoeForCausalLM", "glm4_moe");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["use_qk_norm"] = c.has_tensor("blk.0.attn_q_norm.weight");
  read_deepseek_experts(c);
  c.tensors.insert(c.tensors.begin(), kGlm4Moe);
  c.keep_predicting_blocks(kGlm4MoePredicting);
}

void configure_ernie4_5(GgufConfig& c) {
  configure_llama_like(c, "Ernie4_5ForCausalLM", "ernie4_5");
  c.hf["use_bias"] = c.has_bias();
}

void configure_ernie4_5_moe(GgufConfig& c) {
  configure_llama_like(c, "Ernie4_5_MoeForCausalLM", "ernie4_5_moe");
  c.hf["use_bias"] = c.has_bias();
  c.require_gating(Gating::kSoftmax);
  c.experts("moe_num_experts", "moe_intermediate_size");
  c.rename("num_experts_per_tok", "moe_k");
  c.integer("expert_shared_count", "moe_num_shared_experts");
  c.ignore({"expert_shared_feed_forward_length"});  // old files use it with another meaning
  c.integer("leading_dense_block_count", "moe_layer_start_index");
  c.integer("interleave_moe_layer_step", "moe_layer_interval");
  if (!c.boolean_or("expert_weights_norm", true)) c.refuse("expert_weights_norm", "must be true");
  c.tensors = {kErnieMoe, kSharedExperts, kExpertTensors, kLlamaTensors};
}

void configure_hunyuan_dense(GgufConfig& c) {
  configure_llama_like(c, "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense");
  c.hf["attention_bias"] = c.has_bias();
  c.tensors = {kHunyuan, kLlamaTensors};
}

void configure_hunyuan_moe(GgufConfig& c) {
  configure_llama_like(c, "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe");
  c.hf["attention_bias"] = c.has_bias();
  c.experts("num_experts", nullptr);
  c.rename("num_experts_per_tok", "moe_topk");
  c.ignore({"expert_feed_forward_length", "expert_shared_feed_forward_length"});  // both equal feed_forward_length
  c.tensors = {kHunyuan, kExpertTensors, kLlamaTensors};
}

constexpr GgufArchitecture kQwenArchitectures[] = {
    {"qwen2", configure_qwen2},
    {"qwen2moe", configure_qwen2moe},
    {"qwen3", configure_qwen3},
    {"qwen3moe", configure_qwen3moe},
    {"qwen2vl", configure_qwen2vl},
    {"qwen3vl", configure_qwen3vl},
    {"qwen3vlmoe", configure_qwen3vlmoe},
    {"qwen3next", configure_qwen3next},
    {"qwen35", configure_qwen35},
    {"qwen35moe", configure_qwen35moe},
    {"seed_oss", configure_seed_oss},
    {"glm4", configure_glm4},
    {"chatglm", configure_chatglm},
    {"dots1", configure_dots1},
    {"glm4moe", configure_glm4moe},
    {"ernie4_5", configure_ernie4_5},
    {"ernie4_5-moe", configure_ernie4_5_moe},
    {"hunyuan-dense", configure_hunyuan_dense},
    {"hunyuan-moe", configure_hunyuan_moe},
};
const RegisterArchitectures registered_qwen{kQwenArchitectures};

}  // namespace

void read_expert_sizes(GgufConfig& c) {
  c.experts("n_routed_experts", "moe_intermediate_size");
  c.integer("expert_shared_count", "n_shared_experts", false);
  c.ignore({"expert_shared_feed_forward_length"});
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", false);
  c.number("expert_weights_scale", "routed_scaling_factor", false);
  c.integer("leading_dense_block_count", "first_k_dense_replace", false);
  c.tensors = {kCorrections, kSharedExperts, kExpertTensors, kLlamaTensors};
}

void read_deepseek_experts(GgufConfig& c) {
  c.require_gating(Gating::kSigmoid);
  read_expert_sizes(c);
  c.integer("expert_group_count", "n_group", false);
  c.integer("expert_group_used_count", "topk_group", false);
}

}  // namespace sluice
