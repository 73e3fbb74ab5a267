// GGUF architectures of mixtures of experts that stand for themselves: gpt-oss, DeepSeek V2 and V3, MiniMax M2.
#include "formats/gguf_architecture.h"

namespace sluice {
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

// The keys' and values' projection in one, or, in newer files, one matrix for each head of either.
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

constexpr TensorRule kMinimax[] = {
    {"blk.{}.exp_probs_b", "model.layers.{}.block_sparse_moe.e_score_correction_bias", kWholeName},
};

void configure_gpt_oss(GgufConfig& c) {
  configure_llama_like(c, "GptOssForCausalLM", "gpt_oss");
  c.windows(2);
  c.experts("num_local_experts", "intermediate_size");
  // As its authors say; llama.cpp rounds the limits of the ramp.
  if (c.hf.contains("rope_scaling") && c.hf["rope_scaling"]["rope_type"] == "yarn") {
    c.hf["rope_scaling"]["truncate"] = false;
  }
  c.tensors = {kGptOss, kLlamaTensors};
}

// Sizes of the heads: in files that split the projection of keys and values, those of the latent vectors stand where
// others have the heads'.
void read_latent_sizes(GgufConfig& c) {
  const bool split = c.has("attention.key_length_mla");
  const int64_t rotary = c.integer("rope.dimension_count");
  const int64_t key = c.integer(split ? "attention.key_length_mla" : "attention.key_length");
  if (rotary < 1 || key <= rotary) c.refuse("attention.key_length", "is not above rope.dimension_count");
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
  // The converter writes a tenth of mscale_all_dim. llama.cpp takes mscale to be equal, where it is not 1.
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

void configure_minimax_m2(GgufConfig& c) {
  configure_llama_like(c, "MiniMaxM2ForCausalLM", "minimax_m2");
  c.require_gating(Gating::kSigmoid);
  c.experts("num_local_experts", "intermediate_size");
  c.rename("partial_rotary_factor", "");
  c.integer("rope.dimension_count", "rotary_dim", false);
  c.tensors = {kMinimax, kMixtralTensors, kLlamaTensors};
}

constexpr GgufArchitecture kArchitectures[] = {
    {"gpt-oss", configure_gpt_oss}, {"deepseek2", configure_deepseek2}, {"minimax-m2", configure_minimax_m2}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice
