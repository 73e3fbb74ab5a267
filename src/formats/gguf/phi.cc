// GGUF architectures with Llama's tensor names but other norms or projections: Phi, StableLM, StarCoder 2, Nemotron,
// Command R.
#include "formats/gguf/architecture.h"

namespace sluice::gguf::phi {
namespace {

using enum TensorForm;

constexpr TensorRule kPhi2[] = {
    {"output_norm", "model.final_layernorm"},
    {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj", kSplitQkv},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.dense"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.fc1"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.fc2"},
};
constexpr TensorRule kPhi3[] = {
    {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
};
constexpr TensorRule kStableLm[] = {
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm.norms.{h}", kHeadNorms},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm.norms.{h}", kHeadNorms},
};
constexpr TensorRule kStarcoder2[] = {
    {"blk.{}.ffn_up", "model.layers.{}.mlp.c_fc"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.c_proj"},
};

void configure_phi2(GgufConfig& c) {
  configure_llama_like(c, "PhiForCausalLM", "phi");
  c.layer_norm("layer_norm_eps");
  c.tensors = {kPhi2, kLlamaTensors};
}

void configure_phi3(GgufConfig& c) {
  configure_llama_like(c, "Phi3ForCausalLM", "phi3");
  const int64_t window = c.integer_or("attention.sliding_window", 0);
  if (window > 0) c.hf["sliding_window"] = window;
  c.tensors = {kPhi3, kLlamaTensors};
}

void configure_phimoe(GgufConfig& c) {
  configure_llama_like(c, "PhimoeForCausalLM", "phimoe");
  c.experts("num_local_experts", nullptr);
  c.ignore({"expert_feed_forward_length"});
  c.hf["attention_bias"] = c.has_bias();
  c.hf["lm_head_bias"] = c.has_tensor("output.bias");
  if (const int64_t window = c.integer_or("attention.sliding_window", 0); window > 0) c.hf["sliding_window"] = window;
  c.tensors = {kMixtralTensors, kLlamaTensors};
}

void configure_jais2(GgufConfig& c) {
  configure_llama_like(c, "Jais2ForCausalLM", "jais2");
  c.layer_norm("layer_norm_eps");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["mlp_bias"] = c.has_tensor("blk.0.ffn_up.bias");
}

void configure_stablelm(GgufConfig& c) {
  configure_llama_like(c, "StableLmForCausalLM", "stablelm");
  c.layer_norm("layer_norm_eps");
  c.hf["use_parallel_residual"] = c.boolean_or("use_parallel_residual", false);
  c.hf["use_qkv_bias"] = c.has_bias();
  c.hf["qk_layernorm"] = c.has_tensor("blk.0.attn_q_norm.weight");
  c.tensors = {kStableLm, kLlamaTensors};
}

void configure_starcoder2(GgufConfig& c) {
  configure_llama_like(c, "Starcoder2ForCausalLM", "starcoder2");
  c.layer_norm("norm_epsilon");
  c.hf["use_bias"] = c.has_bias();
  c.ignore({"attention.sliding_window"});
  c.tensors = {kStarcoder2, kLlamaTensors};
}

constexpr TensorRule kNemotron[] = {
    {"output_norm", "model.norm", kPlusOne},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", kPlusOne},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
};

void configure_nemotron(GgufConfig& c) {
  configure_llama_like(c, "NemotronForCausalLM", "nemotron");
  c.layer_norm("norm_eps");
  c.tensors = {kNemotron, kLlamaTensors};
}

void configure_command_r(GgufConfig& c) {
  configure_llama_like(c, "CohereForCausalLM", "cohere");
  c.layer_norm("layer_norm_eps");
  c.number("logit_scale", "logit_scale");
  c.hf["use_qk_norm"] = c.has_tensor("blk.0.attn_q_norm.weight");
}

void configure_cohere2(GgufConfig& c) {
  configure_llama_like(c, "Cohere2ForCausalLM", "cohere2");
  c.layer_norm("layer_norm_eps");
  c.number("logit_scale", "logit_scale");
  c.windows(4);
}

constexpr GgufArchitecture kArchitectures[] = {
    {"phi2", configure_phi2},         {"phi3", configure_phi3},           {"phimoe", configure_phimoe},
    {"jais2", configure_jais2},       {"stablelm", configure_stablelm},   {"starcoder2", configure_starcoder2},
    {"nemotron", configure_nemotron}, {"command-r", configure_command_r}, {"cohere2", configure_cohere2},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::phi
