// GGUF architectures whose graph is a variant of Llama's: Llama itself (including Mistral and Mixtral, which use its
// name), SmolLM, Granite, Arcee, OLMo.
#include <fmt/core.h>

#include <cmath>

#include "formats/gguf/architecture.h"

namespace sluice {
namespace {

using enum TensorForm;

constexpr TensorRule kLlama[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"rope_freqs", "", kRead},
    {"rope_factors_long", "", kRead},
    {"rope_factors_short", "", kRead},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
};

constexpr TensorRule kPaired[] = {
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", kPairedQ},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", kPairedK},
};

constexpr TensorRule kPairedOwnHeads[] = {
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", kPairedOwn},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", kPairedOwn},
};

constexpr TensorRule kExpert[] = {
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{e}.gate_proj", kExperts},
    {"blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{e}.up_proj", kExperts},
    {"blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{e}.down_proj", kExperts},
};

constexpr TensorRule kMixtral[] = {
    {"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w1", kExperts},
    {"blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w3", kExperts},
    {"blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w2", kExperts},
};

constexpr TensorRule kGraniteMoe[] = {
    {"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.router.layer"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.input_linear", kGateRows},
    {"blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.input_linear", kUpRows},
    {"blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.output_linear"},
};

constexpr TensorRule kApertus[] = {
    {"blk.{}.attn_norm", "model.layers.{}.attention_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.feedforward_layernorm"},
};

constexpr TensorRule kBitnet[] = {
    {"blk.{}.attn_sub_norm", "model.layers.{}.self_attn.attn_sub_norm"},
    {"blk.{}.ffn_sub_norm", "model.layers.{}.mlp.ffn_sub_norm"},
};

constexpr TensorRule kPostNorms[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"},
};

void configure_paired(GgufConfig& c, const char* architecture, const char* model_type) {
  configure_llama_like(c, architecture, model_type);
  c.tensors = {kPaired, kLlama};
}

void configure_llama(GgufConfig& c) {
  if (c.integer_or("expert_count", 0) == 0) {
    configure_paired(c, "LlamaForCausalLM", "llama");
    c.ignore({"expert_used_count"});
    c.hf["attention_bias"] = c.has_bias();
    c.hf["mlp_bias"] = c.has_tensor("blk.0.ffn_gate.bias");
    return;
  }
  configure_paired(c, "MixtralForCausalLM", "mixtral");
  c.experts("num_local_experts", nullptr);
  c.ignore({"expert_feed_forward_length"});  // same value as feed_forward_length
  c.tensors = {kPaired, kMixtral, kLlama};
}

void configure_smollm3(GgufConfig& c) {
  configure_paired(c, "SmolLM3ForCausalLM", "smollm3");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["mlp_bias"] = c.has_tensor("blk.0.ffn_gate.bias");
}

// Families with Llama's graph under other names. The converter splits InternLM 2's fused projection.
void configure_llama_paired(GgufConfig& c) {
  configure_paired(c, "LlamaForCausalLM", "llama");
  c.hf["attention_bias"] = c.has_bias();
}

// EXAONE 3. The converter did not pair its rows.
void configure_exaone(GgufConfig& c) {
  configure_llama_like(c, "LlamaForCausalLM", "llama");
  if (!c.has("attention.layer_norm_rms_epsilon")) c.layer_norm("rms_norm_eps");
  c.ignore({"attention.layer_norm_epsilon"});
}

// The converter did not pair openPangu's rows either.
void configure_pangu_embedded(GgufConfig& c) {
  configure_llama_like(c, "PanguEmbeddedForCausalLM", "PanguEmbedded");
  c.hf["bias"] = c.has_bias();
}

void configure_orion(GgufConfig& c) {
  configure_llama_like(c, "OrionForCausalLM", "orion");
  if (c.has("attention.layer_norm_epsilon")) c.layer_norm("rms_norm_eps");
}

// Baichuan. The 13B models use ALiBi and are recognized by their depth. The file does not mark the second generation's
// normalized head either: the vocabulary size does. The converter leaves the head's rows unchanged.
void configure_baichuan(GgufConfig& c) {
  configure_paired(c, "BaichuanForCausalLM", "baichuan");
  constexpr int64_t kAlibiDepth = 40;
  if (c.layers() == kAlibiDepth) {
    c.rename("max_position_embeddings", "model_max_length");
    for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) c.rename(key, "");
  }
}

// Llama Nemotron and DeciLM. Layers have heads and widths of their own, or lack a part.
void configure_deci(GgufConfig& c) {
  c.architecture("DeciLMForCausalLM", "nemotron-nas");
  c.sizes();
  const std::vector<int64_t> kv_heads = c.heads_by_layer(), widths = c.of_layers("feed_forward_length");
  if (c.integer_or("attention.value_length", c.head_dim()) != c.head_dim()) {
    c.refuse("attention.value_length", "must equal attention.key_length");
  }
  c.rope();
  c.rms_norm();
  Json blocks = Json::array();
  for (size_t i = 0; i < kv_heads.size(); ++i) {
    Json attention = {{"no_op", true}}, mlp = {{"no_op", true}};
    if (kv_heads[i] != 0) {
      attention = {{"n_heads_in_group", c.hf["num_attention_heads"].get<int64_t>() / kv_heads[i]}};
    }
    if (widths[i] != 0) mlp = {{"intermediate_size", widths[i]}};
    blocks.push_back({{"attention", std::move(attention)}, {"ffn", std::move(mlp)}});
  }
  c.hf["block_configs"] = std::move(blocks);
  c.tensors = {kPairedOwnHeads, kLlama};
}

// BitNet of the first publications, with Llama's activation. Its head is the embedding.
void configure_bitnet(GgufConfig& c) {
  configure_llama_like(c, "BitNetForCausalLM", "bitnet");
  c.hf["hidden_act"] = "silu";
  c.tensors = {kBitnet, kLlama};
}

// MiniCPM is Granite with different names. Older files lack the factors, which were the same in all its models then.
void configure_minicpm(GgufConfig& c) {
  configure_paired(c, "GraniteForCausalLM", "granite");
  c.hf["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(c.head_dim()));
  c.hf["embedding_multiplier"] = c.number_or("embedding_scale", 12.0);
  c.hf["residual_multiplier"] = c.number_or("residual_scale", 1.4 / std::sqrt(static_cast<double>(c.layers())));
  c.hf["logits_scaling"] = c.number_or("logit_scale", static_cast<double>(c.hidden()) / 256);
}

void configure_arcee(GgufConfig& c) { configure_paired(c, "ArceeForCausalLM", "arcee"); }

// Ministral 3. A file without its attention temperature is a Mistral.
void configure_mistral3(GgufConfig& c) {
  const bool grows = c.has("attention.temperature_scale");
  configure_paired(c, grows ? "Ministral3ForCausalLM" : "MistralForCausalLM", grows ? "ministral3" : "mistral");
  const double mscale_all_dim = c.number_or("rope.scaling.yarn_log_multiplier", 0.0);
  if (mscale_all_dim != 0) c.yarn_scales(1.0, mscale_all_dim);
  if (!grows) return;
  if (!c.hf.contains("rope_scaling")) c.refuse("rope.scaling.type", "is missing");
  Json rope = c.hf["rope_scaling"];
  rope["rope_theta"] = c.hf["rope_theta"];
  rope["llama_4_scaling_beta"] = c.number("attention.temperature_scale");
  for (const char* key : {"rope_scaling", "rope_theta", "partial_rotary_factor"}) c.rename(key, "");
  c.hf["rope_parameters"] = std::move(rope);
}

void configure_granite(GgufConfig& c) {
  configure_paired(c, "GraniteForCausalLM", "granite");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["mlp_bias"] = c.has_tensor("blk.0.ffn_gate.bias");
  read_granite_scales(c);
}

void configure_granitemoe(GgufConfig& c) {
  configure_paired(c, "GraniteMoeForCausalLM", "granitemoe");
  c.hf["attention_bias"] = c.has_bias();
  read_granite_scales(c);
  c.experts("num_local_experts", nullptr);
  c.ignore({"expert_feed_forward_length"});
  if (c.integer_or("expert_shared_feed_forward_length", 0) != 0) {
    c.refuse("expert_shared_feed_forward_length", "is not supported");
  }
  c.tensors = {kPaired, kGraniteMoe, kLlama};
}

void configure_olmo(GgufConfig& c) {
  configure_paired(c, "OlmoForCausalLM", "olmo");
  c.ignore({"attention.layer_norm_epsilon"});  // always 1e-5
  c.number("attention.clamp_kqv", "clip_qkv", false);
}

// OLMo 3 uses the same name, but has sliding windows.
void configure_olmo2(GgufConfig& c) {
  const bool windows = c.has("attention.sliding_window");
  configure_llama_like(c, windows ? "Olmo3ForCausalLM" : "Olmo2ForCausalLM", windows ? "olmo3" : "olmo2");
  if (windows) c.windows(4);
  c.tensors = {kPostNorms, kLlama};
}

void configure_olmoe(GgufConfig& c) {
  configure_llama_like(c, "OlmoeForCausalLM", "olmoe");
  c.experts("num_experts", nullptr);
  c.ignore({"expert_feed_forward_length"});
  c.number("attention.clamp_kqv", "clip_qkv", false);
  c.tensors = {kExpert, kLlama};
}

void configure_exaone4(GgufConfig& c) {
  configure_llama_like(c, "Exaone4ForCausalLM", "exaone4");
  c.windows(4);
  c.tensors = {kPostNorms, kLlama};
}

// The learned parameters of its activations are lists in the metadata.
void configure_apertus(GgufConfig& c) {
  configure_llama_like(c, "ApertusForCausalLM", "apertus");
  c.hf["attention_bias"] = c.has_bias();
  for (const auto& [name, shape] : {std::pair{"alpha_n", Shape{1}}, {"alpha_p", {1}}, {"beta", {}}, {"eps", {}}}) {
    const std::string key = fmt::format("xielu.{}", name);
    const std::vector<double> values = c.unprefixed_numbers(key);
    if (static_cast<int64_t>(values.size()) != c.layers()) {
      c.refuse("block_count", key + ": expected one entry per layer");
    }
    for (int64_t i = 0; i < c.layers(); ++i) {
      c.scalars.push_back(
          {fmt::format("model.layers.{}.mlp.act_fn.{}", i, name), shape, static_cast<float>(values[i])});
    }
  }
  c.tensors = {kApertus, kLlamaTensors};
}

constexpr GgufArchitecture kLlamaArchitectures[] = {
    {"llama", configure_llama},
    {"smollm3", configure_smollm3},
    {"arcee", configure_arcee},
    {"granite", configure_granite},
    {"granitemoe", configure_granitemoe},
    {"olmo", configure_olmo},
    {"olmo2", configure_olmo2},
    {"olmoe", configure_olmoe},
    {"exaone4", configure_exaone4},
    {"mistral3", configure_mistral3},
    {"internlm2", configure_llama_paired},
    {"exaone", configure_exaone},
    {"orion", configure_orion},
    {"baichuan", configure_baichuan},
    {"bitnet", configure_bitnet},
    {"deci", configure_deci},
    {"minicpm", configure_minicpm},
    {"apertus", configure_apertus},
    {"xverse", configure_llama_paired},
    {"pangu-embedded", configure_pangu_embedded},
};
const RegisterArchitectures registered_llama{kLlamaArchitectures};

}  // namespace

void read_granite_scales(GgufConfig& c) {
  c.number("embedding_scale", "embedding_multiplier", false);
  c.number("residual_scale", "residual_multiplier", false);
  c.number("attention.scale", "attention_multiplier", false);
  c.number("logit_scale", "logits_scaling", false);
}

const std::span<const TensorRule> kLlamaTensors = kLlama, kPairedTensors = kPaired, kExpertTensors = kExpert;
const std::span<const TensorRule> kMixtralTensors = kMixtral, kGraniteExpertTensors = kGraniteMoe;

}  // namespace sluice
