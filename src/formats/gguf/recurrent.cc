// GGUF architectures with recurrent layers. Mamba and Mamba 2 occur alone, next to attention, or alternating with it
// (Jamba, Falcon-H1, Granite 4, Nemotron-H). LFM2 has short convolutions. A layer without kv heads has no attention.
#include <fmt/core.h>

#include <algorithm>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::recurrent {
namespace {

using enum TensorForm;

// Mamba's own names, which Nemotron-H uses too.
constexpr TensorRule kMixer[] = {
    {"token_embd", "backbone.embeddings"},
    {"output_norm", "backbone.norm_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "backbone.layers.{}.norm"},
    {"blk.{}.ssm_in", "backbone.layers.{}.mixer.in_proj"},
    {"blk.{}.ssm_conv1d", "backbone.layers.{}.mixer.conv1d", kDepthwise},
    {"blk.{}.ssm_x", "backbone.layers.{}.mixer.x_proj"},
    {"blk.{}.ssm_a", "backbone.layers.{}.mixer.A_log", kDecays},
    {"blk.{}.ssm_d", "backbone.layers.{}.mixer.D", kFlat},
    {"blk.{}.ssm_norm", "backbone.layers.{}.mixer.norm", kFlat},
    {"blk.{}.ssm_out", "backbone.layers.{}.mixer.out_proj"},
    {"blk.{}.attn_q", "backbone.layers.{}.mixer.q_proj"},
    {"blk.{}.attn_k", "backbone.layers.{}.mixer.k_proj"},
    {"blk.{}.attn_v", "backbone.layers.{}.mixer.v_proj"},
    {"blk.{}.attn_output", "backbone.layers.{}.mixer.o_proj"},
    {"blk.{}.ffn_up", "backbone.layers.{}.mixer.up_proj"},
    {"blk.{}.ffn_down", "backbone.layers.{}.mixer.down_proj"},
};
// Nemotron-H's experts.
constexpr TensorRule kMixerExperts[] = {
    {"blk.{}.ffn_gate_inp", "backbone.layers.{}.mixer.gate"},
    {"blk.{}.exp_probs_b", "backbone.layers.{}.mixer.gate.e_score_correction_bias", kWholeName},
    {"blk.{}.ffn_up_exps", "backbone.layers.{}.mixer.experts.{e}.up_proj", kExperts},
    {"blk.{}.ffn_down_exps", "backbone.layers.{}.mixer.experts.{e}.down_proj", kExperts},
    {"blk.{}.ffn_up_shexp", "backbone.layers.{}.mixer.shared_experts.up_proj"},
    {"blk.{}.ffn_down_shexp", "backbone.layers.{}.mixer.shared_experts.down_proj"},
    {"blk.{}.ffn_latent_down", "backbone.layers.{}.mixer.fc1_latent_proj"},
    {"blk.{}.ffn_latent_up", "backbone.layers.{}.mixer.fc2_latent_proj"},
};
constexpr TensorRule kMixerStep[] = {{"blk.{}.ssm_dt", "backbone.layers.{}.mixer.dt_proj"}};
constexpr TensorRule kMixer2Step[] = {{"blk.{}.ssm_dt", "backbone.layers.{}.mixer.dt_bias", kWholeName}};

// Tensors used in addition to Llama's names.
constexpr TensorRule kHybrid[] = {
    {"blk.{}.ssm_in", "model.layers.{}.mamba.in_proj"},
    {"blk.{}.ssm_conv1d", "model.layers.{}.mamba.conv1d", kDepthwise},
    {"blk.{}.ssm_x", "model.layers.{}.mamba.x_proj"},
    {"blk.{}.ssm_dt_norm", "model.layers.{}.mamba.dt_layernorm"},
    {"blk.{}.ssm_b_norm", "model.layers.{}.mamba.b_layernorm"},
    {"blk.{}.ssm_c_norm", "model.layers.{}.mamba.c_layernorm"},
    {"blk.{}.ssm_a", "model.layers.{}.mamba.A_log", kDecays},
    {"blk.{}.ssm_d", "model.layers.{}.mamba.D", kFlat},
    {"blk.{}.ssm_norm", "model.layers.{}.mamba.norm", kFlat},
    {"blk.{}.ssm_out", "model.layers.{}.mamba.out_proj"},
};
constexpr TensorRule kHybridStep[] = {{"blk.{}.ssm_dt", "model.layers.{}.mamba.dt_proj"}};
constexpr TensorRule kHybrid2Step[] = {{"blk.{}.ssm_dt", "model.layers.{}.mamba.dt_bias", kWholeName}};

// The MLP of Jamba and Falcon-H1.
constexpr TensorRule kFeedForward[] = {
    {"output_norm", "model.final_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_ff_layernorm"},
    {"blk.{}.ffn_gate", "model.layers.{}.feed_forward.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.feed_forward.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.feed_forward.down_proj"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.router"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.feed_forward.experts.{e}.gate_proj", kExperts},
    {"blk.{}.ffn_up_exps", "model.layers.{}.feed_forward.experts.{e}.up_proj", kExperts},
    {"blk.{}.ffn_down_exps", "model.layers.{}.feed_forward.experts.{e}.down_proj", kExperts},
};

// llama.cpp's name of this norm has no suffix.
constexpr TensorRule kFalconNorm[] = {
    {"blk.{}.ffn_norm", "model.layers.{}.pre_ff_layernorm.weight", kWholeName},
};

constexpr TensorRule kGraniteMlps[] = {
    {"blk.{}.ffn_gate", "model.layers.{}.shared_mlp.input_linear", kGateRows},
    {"blk.{}.ffn_up", "model.layers.{}.shared_mlp.input_linear", kUpRows},
    {"blk.{}.ffn_down", "model.layers.{}.shared_mlp.output_linear"},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.shared_mlp.input_linear", kGateRows},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.shared_mlp.input_linear", kUpRows},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.shared_mlp.output_linear"},
};

constexpr TensorRule kLfm2[] = {
    {"token_embd_norm", "model.embedding_norm"},
    {"output_norm", "model.embedding_norm"},
    {"blk.{}.attn_norm", "model.layers.{}.operator_norm"},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.out_proj"},
    {"blk.{}.shortconv.conv", "model.layers.{}.conv.conv", kDepthwise},
    {"blk.{}.shortconv.in_proj", "model.layers.{}.conv.in_proj"},
    {"blk.{}.shortconv.out_proj", "model.layers.{}.conv.out_proj"},
    {"blk.{}.ffn_norm", "model.layers.{}.ffn_norm"},
    {"blk.{}.ffn_gate", "model.layers.{}.feed_forward.w1"},
    {"blk.{}.ffn_up", "model.layers.{}.feed_forward.w3"},
    {"blk.{}.ffn_down", "model.layers.{}.feed_forward.w2"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.gate"},
    {"blk.{}.exp_probs_b", "model.layers.{}.feed_forward.expert_bias", kWholeName},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.feed_forward.experts.{e}.w1", kExperts},
    {"blk.{}.ffn_up_exps", "model.layers.{}.feed_forward.experts.{e}.w3", kExperts},
    {"blk.{}.ffn_down_exps", "model.layers.{}.feed_forward.experts.{e}.w2", kExperts},
};

// Returns inner / hidden size, which must be an integer.
int64_t whole_factor(GgufConfig& c, int64_t inner) {
  if (inner < 1 || inner % c.hidden() != 0) c.refuse("ssm.inner_size", "must be a multiple of embedding_length");
  return inner / c.hidden();
}

// Returns whether a tensor has a bias in the first layer that has the tensor; false when no layer has it.
bool has_bias(const GgufConfig& c, std::string_view name, int64_t layers) {
  for (int64_t i = 0; i < layers; ++i) {
    if (c.has_tensor(fmt::format("blk.{}.{}.weight", i, name))) {
      return c.has_tensor(fmt::format("blk.{}.{}.bias", i, name));
    }
  }
  return false;
}

int64_t layers_of(const GgufConfig& c) { return c.hf["num_hidden_layers"].get<int64_t>(); }

// Reads sizes, norm and biases of decoders with only Mamba layers.
void configure_mamba_body(GgufConfig& c, const char* architecture, const char* model_type) {
  c.architecture(architecture, model_type);
  c.sizes();
  c.rename("max_position_embeddings", "");  // states do not grow with the context
  c.ignore({"attention.head_count", "attention.head_count_kv", "feed_forward_length"});
  c.number("attention.layer_norm_rms_epsilon", "layer_norm_epsilon");
  c.integer("ssm.conv_kernel", "conv_kernel");
  c.hf["use_conv_bias"] = has_bias(c, "ssm_conv1d", layers_of(c));
  c.hf["use_bias"] = has_bias(c, "ssm_in", layers_of(c));
}

void configure_mamba(GgufConfig& c) {
  const bool norms = c.boolean_or("ssm.dt_b_c_rms", false);
  configure_mamba_body(c, norms ? "FalconMambaForCausalLM" : "MambaForCausalLM", norms ? "falcon_mamba" : "mamba");
  if (norms) c.hf["mixer_rms_eps"] = c.hf["layer_norm_epsilon"];
  c.hf["expand"] = whole_factor(c, c.integer("ssm.inner_size"));
  c.integer("ssm.state_size", "state_size");
  c.integer("ssm.time_step_rank", "time_step_rank");
  c.tensors = {kMixerStep, kMixer};
}

struct Mamba2Names {
  const char *heads, *head_dim, *groups, *state;
};

// Reads Mamba 2's sizes. Returns the width of its layers.
int64_t read_mamba2(GgufConfig& c, const Mamba2Names& names) {
  const int64_t inner = c.integer("ssm.inner_size"), heads = c.integer("ssm.time_step_rank");
  if (heads < 1 || inner % heads != 0) c.refuse("ssm.time_step_rank", "must be a divisor of ssm.inner_size");
  c.hf[names.heads] = heads;
  c.hf[names.head_dim] = inner / heads;
  c.integer("ssm.group_count", names.groups);
  c.integer("ssm.state_size", names.state);
  return inner;
}

// transformers normalizes all groups together, llama.cpp each group separately.
void require_one_group(GgufConfig& c) {
  if (c.integer("ssm.group_count") != 1) c.refuse("ssm.group_count", "must be 1 for this architecture");
}

void configure_mamba2(GgufConfig& c) {
  configure_mamba_body(c, "Mamba2ForCausalLM", "mamba2");
  c.hf["expand"] = whole_factor(c, read_mamba2(c, {"num_heads", "head_dim", "n_groups", "state_size"}));
  require_one_group(c);
  c.tensors = {kMixer2Step, kMixer};
}

// Reads the keys of Bamba and its successors.
int64_t read_bamba(GgufConfig& c) {
  c.integer("ssm.conv_kernel", "mamba_d_conv");
  c.hf["mamba_conv_bias"] = has_bias(c, "ssm_conv1d", layers_of(c));
  c.hf["mamba_proj_bias"] = has_bias(c, "ssm_in", layers_of(c));
  return read_mamba2(c, {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"});
}

// The converter multiplies all of the family's multipliers into the weights.
void configure_falcon_h1(GgufConfig& c) {
  configure_llama_like(c, "FalconH1ForCausalLM", "falcon_h1");
  c.hf["attention_bias"] = c.has_bias();
  c.hf["mlp_bias"] = has_bias(c, "ffn_gate", layers_of(c));
  c.hf["mamba_d_ssm"] = read_bamba(c);
  c.hf["projectors_bias"] = has_bias(c, "ssm_out", layers_of(c));
  c.hf["mamba_rms_norm"] = c.has_tensor("blk.0.ssm_norm.weight");
  c.hf["mamba_norm_before_gate"] = false;
  c.tensors = {kFalconNorm, kHybrid2Step, kHybrid, kFeedForward, kLlamaTensors};
}

// A periodic selection of layers: the period and the first layer.
struct Every {
  int64_t period = 0, offset = 0;
};
Every every(GgufConfig& c, const std::vector<bool>& layers, std::string_view key) {
  const auto count = static_cast<int64_t>(layers.size());
  const auto first = std::ranges::find(layers, true), second = std::find(first, layers.end(), true);
  const auto next = second == layers.end() ? second : std::find(second + 1, layers.end(), true);
  Every out{.period = next == layers.end() ? count + 1 : next - first, .offset = first - layers.begin()};
  out.period = std::max(out.period, out.offset + 1);
  for (int64_t i = 0; i < count; ++i) {
    if (layers[i] != (i % out.period == out.offset)) c.refuse(key, "must repeat with a fixed period");
  }
  return out;
}

void configure_jamba(GgufConfig& c) {
  c.architecture("JambaForCausalLM", "jamba");
  c.sizes();
  c.heads();
  c.rename("head_dim", "");  // follows from the other sizes
  c.rms_norm();
  c.integer("feed_forward_length", "intermediate_size");
  c.hf["mamba_expand"] = whole_factor(c, c.integer("ssm.inner_size"));
  c.integer("ssm.conv_kernel", "mamba_d_conv");
  c.integer("ssm.state_size", "mamba_d_state");
  c.integer("ssm.time_step_rank", "mamba_dt_rank");
  c.hf["mamba_conv_bias"] = has_bias(c, "ssm_conv1d", layers_of(c));
  c.hf["mamba_proj_bias"] = has_bias(c, "ssm_in", layers_of(c));
  const Every attention = every(c, c.attends(), "attention.head_count_kv");
  c.hf["attn_layer_period"] = attention.period;
  c.hf["attn_layer_offset"] = attention.offset;
  c.hf["num_experts"] = c.integer_or("expert_count", 1);
  c.integer("expert_used_count", "num_experts_per_tok", false);
  std::vector<bool> sparse;
  for (int64_t i = 0; i < layers_of(c); ++i) {
    sparse.push_back(c.has_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", i)));
  }
  const Every experts = every(c, sparse, "expert_count");
  c.hf["expert_layer_period"] = experts.period;
  c.hf["expert_layer_offset"] = experts.offset;
  c.tensors = {kHybridStep, kHybrid, kFeedForward, kLlamaTensors};
}

// Returns "mamba" or "attention" per layer.
Json kinds_of_layers(const std::vector<bool>& attends) {
  Json kinds = Json::array();
  for (const bool attention : attends) kinds.push_back(attention ? "attention" : "mamba");
  return kinds;
}

// rope.scaling.finetuned says whether the model uses rotary embedding.
void configure_granitehybrid(GgufConfig& c) {
  const bool rotates = c.boolean_or("rope.scaling.finetuned", true);
  configure_llama_like(c, "GraniteMoeHybridForCausalLM", "granitemoehybrid");
  c.hf["position_embedding_type"] = rotates ? "rope" : "nope";
  c.hf["attention_bias"] = has_bias(c, "attn_q", layers_of(c));
  read_granite_scales(c);
  c.hf["mamba_expand"] = whole_factor(c, read_bamba(c));
  require_one_group(c);
  c.hf["layer_types"] = kinds_of_layers(c.attends());
  c.ignore({"expert_shared_feed_forward_length", "expert_used_count"});
  const bool dense = c.integer_or("expert_count", 0) == 0;
  c.hf["num_local_experts"] = 0;
  if (!dense) c.experts("num_local_experts", nullptr);
  const TensorEntry* shared = c.tensor(dense ? "blk.0.ffn_up.weight" : "blk.0.ffn_up_shexp.weight");
  if (shared == nullptr) c.refuse("expert_shared_feed_forward_length", "requires the matrix of the shared expert");
  c.hf["shared_intermediate_size"] = shared->shape[0];
  c.tensors = {kHybrid2Step, kHybrid, kGraniteMlps, kGraniteExpertTensors, kPairedTensors, kLlamaTensors};
}

// A layer has one sublayer: attention if it has kv heads, an MLP or experts if it has a width, otherwise Mamba 2.
void configure_nemotron_h_with(GgufConfig& c, const char* mlp) {
  c.architecture("NemotronHForCausalLM", "nemotron_h");
  c.sizes();
  c.heads();
  c.hf["attention_bias"] = has_bias(c, "attn_q", layers_of(c));
  c.number("attention.layer_norm_rms_epsilon", "layer_norm_epsilon");
  read_mamba2(c, {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"});
  c.integer("ssm.conv_kernel", "conv_kernel");
  c.hf["use_conv_bias"] = has_bias(c, "ssm_conv1d", layers_of(c));
  c.hf["use_bias"] = has_bias(c, "ssm_in", layers_of(c));
  c.hf["mlp_bias"] = has_bias(c, "ffn_up", layers_of(c));
  c.hf["time_step_min"] = 0.0;  // llama.cpp does not limit time steps
  const std::vector<int64_t> widths = c.of_layers("feed_forward_length");
  const std::vector<bool> attends = c.attends();
  Json kinds = Json::array();
  int64_t inner = 0;
  for (size_t i = 0; i < attends.size(); ++i) {
    if (widths[i] != 0 && inner != 0 && widths[i] != inner) {
      c.refuse("feed_forward_length", "must be equal in all layers that have one");
    }
    if (widths[i] != 0) inner = widths[i];
    kinds.push_back(attends[i] ? "attention" : widths[i] != 0 ? mlp : "mamba");
  }
  c.hf["intermediate_size"] = inner;
  c.hf["layers_block_type"] = std::move(kinds);
  c.ignore({"rope.dimension_count", "rope.freq_base", "rope.scaling.finetuned"});  // the model uses no rotary embedding
  c.tensors = {kMixer2Step, kMixer};
}

void configure_nemotron_h(GgufConfig& c) { configure_nemotron_h_with(c, "mlp"); }

// Experts are selected by sigmoids, even when the file does not say so.
void configure_nemotron_h_moe(GgufConfig& c) {
  configure_nemotron_h_with(c, "moe");
  if (c.has("expert_gating_func")) c.require_gating(Gating::kSigmoid);
  c.experts("n_routed_experts", "moe_intermediate_size");
  c.integer("expert_shared_count", "n_shared_experts");
  c.integer("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size");
  c.hf["norm_topk_prob"] = c.boolean_or("expert_weights_norm", true);
  c.number("expert_weights_scale", "routed_scaling_factor", false);
  c.integer("expert_group_count", "n_group", false);
  c.integer("expert_group_used_count", "topk_group", false);
  c.integer("moe_latent_size", "moe_latent_size", false);
  c.tensors = {kMixerExperts, kMixer2Step, kMixer};
}

void configure_lfm2_body(GgufConfig& c, const char* architecture, const char* model_type) {
  configure_llama_like(c, architecture, model_type);
  c.rename("rms_norm_eps", "norm_eps");
  c.rename("head_dim", "");
  c.integer("shortconv.l_cache", "conv_L_cache");
  c.hf["conv_bias"] = has_bias(c, "shortconv.in_proj", layers_of(c));
  Json kinds = Json::array();
  for (const bool attends : c.attends()) kinds.push_back(attends ? "full_attention" : "conv");
  c.hf["layer_types"] = std::move(kinds);
  c.tensors = {kLfm2, kLlamaTensors};
}

void configure_lfm2(GgufConfig& c) {
  configure_lfm2_body(c, "Lfm2ForCausalLM", "lfm2");
  c.hf["block_auto_adjust_ff_dim"] = false;
}

void configure_lfm2moe(GgufConfig& c) {
  configure_lfm2_body(c, "Lfm2MoeForCausalLM", "lfm2_moe");
  c.experts("num_experts", "moe_intermediate_size");
  c.integer("leading_dense_block_count", "num_dense_layers");
  c.require_gating(Gating::kSigmoid);
  c.hf["use_expert_bias"] = c.has_tensor(fmt::format("blk.{}.exp_probs_b.bias", layers_of(c) - 1));
}

constexpr GgufArchitecture kArchitectures[] = {
    {"mamba", configure_mamba},
    {"mamba2", configure_mamba2},
    {"jamba", configure_jamba},
    {"falcon-h1", configure_falcon_h1},
    {"granitehybrid", configure_granitehybrid},
    {"nemotron_h", configure_nemotron_h},
    {"nemotron_h_moe", configure_nemotron_h_moe},
    {"lfm2", configure_lfm2},
    {"lfm2moe", configure_lfm2moe},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::recurrent
