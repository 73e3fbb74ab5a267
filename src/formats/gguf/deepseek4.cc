// The GGUF architecture of DeepSeek-V4.
#include <fmt/core.h>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::deepseek4 {
namespace {

using enum TensorForm;

constexpr TensorRule kTensors[] = {
    {"token_embd", "embed"},
    {"output_norm", "norm"},
    {"output", "head"},
    {"output_hc_fn", "hc_head_fn", kWholeName},
    {"output_hc_base", "hc_head_base", kWholeName},
    {"output_hc_scale", "hc_head_scale", kWholeName},
    {"blk.{}.hc_attn_fn", "layers.{}.hc_attn_fn", kWholeName},
    {"blk.{}.hc_attn_base", "layers.{}.hc_attn_base", kWholeName},
    {"blk.{}.hc_attn_scale", "layers.{}.hc_attn_scale", kWholeName},
    {"blk.{}.hc_ffn_fn", "layers.{}.hc_ffn_fn", kWholeName},
    {"blk.{}.hc_ffn_base", "layers.{}.hc_ffn_base", kWholeName},
    {"blk.{}.hc_ffn_scale", "layers.{}.hc_ffn_scale", kWholeName},
    {"blk.{}.attn_norm", "layers.{}.attn_norm"},
    {"blk.{}.attn_q_a", "layers.{}.attn.wq_a"},
    {"blk.{}.attn_q_a_norm", "layers.{}.attn.q_norm"},
    {"blk.{}.attn_q_b", "layers.{}.attn.wq_b"},
    {"blk.{}.attn_kv", "layers.{}.attn.wkv"},
    {"blk.{}.attn_kv_a_norm", "layers.{}.attn.kv_norm"},
    {"blk.{}.attn_sinks", "layers.{}.attn.attn_sink", kWholeName},
    {"blk.{}.attn_output_a", "layers.{}.attn.wo_a"},
    {"blk.{}.attn_output_b", "layers.{}.attn.wo_b"},
    {"blk.{}.attn_compressor_kv", "layers.{}.attn.compressor.wkv"},
    {"blk.{}.attn_compressor_gate", "layers.{}.attn.compressor.wgate"},
    {"blk.{}.attn_compressor_ape", "layers.{}.attn.compressor.ape", kWholeName},
    {"blk.{}.attn_compressor_norm", "layers.{}.attn.compressor.norm"},
    {"blk.{}.indexer.attn_q_b", "layers.{}.attn.indexer.wq_b"},
    {"blk.{}.indexer.proj", "layers.{}.attn.indexer.weights_proj"},
    {"blk.{}.indexer_compressor_kv", "layers.{}.attn.indexer.compressor.wkv"},
    {"blk.{}.indexer_compressor_gate", "layers.{}.attn.indexer.compressor.wgate"},
    {"blk.{}.indexer_compressor_ape", "layers.{}.attn.indexer.compressor.ape", kWholeName},
    {"blk.{}.indexer_compressor_norm", "layers.{}.attn.indexer.compressor.norm"},
    {"blk.{}.ffn_norm", "layers.{}.ffn_norm"},
    {"blk.{}.ffn_gate_inp", "layers.{}.ffn.gate"},
    {"blk.{}.exp_probs_b", "layers.{}.ffn.gate.bias", kWholeName},
    {"blk.{}.ffn_gate_tid2eid", "layers.{}.ffn.gate.tid2eid", kWholeName},
    {"blk.{}.ffn_gate_exps", "layers.{}.ffn.experts.{e}.w1", kExperts},
    {"blk.{}.ffn_up_exps", "layers.{}.ffn.experts.{e}.w3", kExperts},
    {"blk.{}.ffn_down_exps", "layers.{}.ffn.experts.{e}.w2", kExperts},
    {"blk.{}.ffn_gate_shexp", "layers.{}.ffn.shared_experts.w1"},
    {"blk.{}.ffn_up_shexp", "layers.{}.ffn.shared_experts.w3"},
    {"blk.{}.ffn_down_shexp", "layers.{}.ffn.shared_experts.w2"},
};

// llama.cpp's number of the score sqrt(softplus(logit)).
constexpr int64_t kSqrtSoftplus = 4;

void read_rope(GgufConfig& c) {
  c.rope();
  c.number("attention.compress_rope_freq_base", "compress_rope_theta");
  // The published model does not scale cosines and sines.
  if (c.hf.contains("rope_scaling") && c.hf["rope_scaling"]["rope_type"] == "yarn") {
    c.hf["rope_scaling"]["attention_factor"] = 1.0;
  }
}

void read_experts(GgufConfig& c) {
  c.experts("n_routed_experts", "moe_intermediate_size");
  c.integer("expert_shared_count", "n_shared_experts");
  c.ignore({"expert_shared_feed_forward_length", "feed_forward_length"});
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", true);
  c.number("expert_weights_scale", "routed_scaling_factor");
  c.integer("hash_layer_count", "num_hash_layers");
  const int64_t gating = c.integer_or("expert_gating_func", kSqrtSoftplus);
  if (gating != kSqrtSoftplus && gating != static_cast<int64_t>(Gating::kSigmoid))
    c.refuse("expert_gating_func", fmt::format("unknown value {} (expected 2 or {})", gating, kSqrtSoftplus));
  c.hf["scoring_func"] = gating == kSqrtSoftplus ? "sqrtsoftplus" : "sigmoid";
  const std::vector<double> limits = c.numbers("swiglu_clamp_exp");
  if (limits.empty()) c.refuse("swiglu_clamp_exp", "is missing");
  c.hf["swiglu_limit"] = limits[0];
  for (const char* key : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
    for (const double limit : c.numbers(key)) {
      if (limit != limits[0]) c.refuse(key, "differs from layer to layer or between experts, which is not supported");
    }
  }
}

void configure_deepseek4(GgufConfig& c) {
  c.architecture("DeepseekV4ForCausalLM", "deepseek_v4");
  c.sizes();
  // The converter counts the layers that predict further tokens, whether or not it stores them.
  if (!c.has_tensor(fmt::format("blk.{}.nextn.enorm.weight", c.layers()))) c.all_blocks_are_layers();
  c.heads();
  c.rms_norm();
  read_rope(c);
  c.integer("attention.q_lora_rank", "q_lora_rank");
  c.integer("attention.output_lora_rank", "o_lora_rank");
  c.integer("attention.output_group_count", "o_groups");
  c.integer("attention.sliding_window", "sliding_window");
  Json ratios = Json::array();
  for (const double ratio : c.numbers("attention.compress_ratios")) ratios.push_back(static_cast<int64_t>(ratio));
  c.hf["compress_ratios"] = std::move(ratios);
  c.integer("attention.indexer.head_count", "index_n_heads");
  c.integer("attention.indexer.key_length", "index_head_dim");
  c.integer("attention.indexer.top_k", "index_topk");
  c.integer("hyper_connection.count", "hc_mult");
  c.integer("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters");
  c.number("hyper_connection.epsilon", "hc_eps");
  read_experts(c);
  c.tensors = {kTensors};
}

constexpr GgufArchitecture kArchitectures[] = {{"deepseek4", configure_deepseek4}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::deepseek4
