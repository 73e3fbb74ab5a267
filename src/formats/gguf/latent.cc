// GGUF architectures with latent attention: DeepSeek 2 to 3.2, GLM-5, Kimi Linear, MiniCPM 3.
#include <fmt/core.h>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::latent {
namespace {

using enum TensorForm;

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

// The indexers of DeepSeek-V3.2 and GLM-5.
constexpr TensorRule kIndexer[] = {
    {"blk.{}.indexer.attn_q_b", "model.layers.{}.self_attn.indexer.wq_b"},
    {"blk.{}.indexer.attn_k", "model.layers.{}.self_attn.indexer.wk"},
    {"blk.{}.indexer.k_norm", "model.layers.{}.self_attn.indexer.k_norm"},
    {"blk.{}.indexer.proj", "model.layers.{}.self_attn.indexer.weights_proj"},
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

// Reads what all models of DeepSeek's line have, but for their experts.
void read_deepseek_latent(GgufConfig& c) {
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
}

void configure_deepseek2(GgufConfig& c) {
  const bool third = c.gating() == Gating::kSigmoid;
  c.architecture(third ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM", third ? "deepseek_v3" : "deepseek_v2");
  read_deepseek_latent(c);
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

// Layers see the tokens that an indexer selects. A layer without one shares the selection of the layer before it.
// attention.indexer.types has 1 for each layer that selects; older files show it by their tensors.
void read_indexer_types(GgufConfig& c) {
  const std::vector<double> selects = c.numbers("attention.indexer.types");
  Json types = Json::array();
  for (size_t i = 0; i < c.hf["num_hidden_layers"].get<size_t>(); ++i) {
    const bool has = c.has_tensor(fmt::format("blk.{}.indexer.attn_k.weight", i));
    types.push_back(Json((i < selects.size() ? selects[i] != 0 : has) ? "full" : "shared"));
  }
  c.hf["indexer_types"] = std::move(types);
}

void read_indexed(GgufConfig& c) {
  read_deepseek_latent(c);
  read_deepseek_experts(c);
  c.integer("attention.indexer.head_count", "index_n_heads");
  c.integer("attention.indexer.key_length", "index_head_dim");
  c.integer("attention.indexer.top_k", "index_topk");
  read_indexer_types(c);
  c.tensors.insert(c.tensors.begin(), {kIndexer, kLatent});
}

void configure_deepseek32(GgufConfig& c) {
  c.architecture("DeepseekV32ForCausalLM", "deepseek_v32");
  read_indexed(c);
}

void configure_glm_dsa(GgufConfig& c) {
  c.architecture("GlmMoeDsaForCausalLM", "glm_moe_dsa");
  read_indexed(c);
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

constexpr GgufArchitecture kArchitectures[] = {
    {"deepseek2", configure_deepseek2}, {"deepseek32", configure_deepseek32},   {"glm-dsa", configure_glm_dsa},
    {"minicpm3", configure_minicpm3},   {"kimi-linear", configure_kimi_linear},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::latent
