// GGUF architectures of Gemma. The converter stores 1 + weight for norms, the 1 that the model adds.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::gemma {
namespace {

using enum TensorForm;

constexpr TensorRule kNorms[] = {
    {"output_norm", "model.norm", kPlusOne},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", kPlusOne},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", kPlusOne},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", kPlusOne},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
};
// The dense layers that sentence-transformers applies after EmbeddingGemma's mean pooling.
constexpr TensorRule kDense[] = {{"dense_2", "2_Dense.linear"}, {"dense_3", "3_Dense.linear"}};

constexpr TensorRule kFourNorms[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm", kPlusOne},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", kPlusOne},
};

// Gemma 3n. Its norms do not add 1.
constexpr TensorRule kGemma3n[] = {
    {"altup_proj", "model.altup_projections.{e}", kExperts},
    {"altup_unembd_proj", "model.altup_unembed_projections.{e}", kExperts},
    {"per_layer_token_embd", "model.embed_tokens_per_layer"},
    {"per_layer_model_proj", "model.per_layer_model_projection"},
    {"per_layer_proj_norm", "model.per_layer_projection_norm"},
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"},
    {"blk.{}.inp_gate", "model.layers.{}.per_layer_input_gate"},
    {"blk.{}.proj", "model.layers.{}.per_layer_projection"},
    {"blk.{}.post_norm", "model.layers.{}.post_per_layer_input_norm"},
    {"blk.{}.altup_correct_coef", "model.layers.{}.altup.correction_coefs"},
    {"blk.{}.altup_correct_scale", "model.layers.{}.altup.correct_output_scale", kWholeName},
    {"blk.{}.altup_predict_coef", "model.layers.{}.altup.prediction_coefs"},
    {"blk.{}.altup_router", "model.layers.{}.altup.modality_router"},
    {"blk.{}.altup_router_norm", "model.layers.{}.altup.router_norm"},
    {"blk.{}.laurel_l", "model.layers.{}.laurel.linear_left"},
    {"blk.{}.laurel_r", "model.layers.{}.laurel.linear_right"},
    {"blk.{}.laurel_post_norm", "model.layers.{}.laurel.post_laurel_norm"},
};

// Gemma 4: inputs per layer as in 3n, and experts next to an MLP.
constexpr TensorRule kGemma4[] = {
    {"blk.{}.layer_output_scale", "model.layers.{}.layer_scalar", kWholeName},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.router.proj"},
    {"blk.{}.ffn_gate_inp.scale", "model.layers.{}.router.scale", kWholeName},
    {"blk.{}.ffn_gate_up_exps", "model.layers.{}.experts.gate_up_proj"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.experts.gate_up_proj", kGateRows},
    {"blk.{}.ffn_up_exps", "model.layers.{}.experts.gate_up_proj", kUpRows},
    {"blk.{}.ffn_down_exps", "model.layers.{}.experts.down_proj"},
    {"blk.{}.ffn_down_exps.scale", "model.layers.{}.router.per_expert_scale", kWholeName},
    {"blk.{}.pre_ffw_norm_2", "model.layers.{}.pre_feedforward_layernorm_2"},
    {"blk.{}.post_ffw_norm_1", "model.layers.{}.post_feedforward_layernorm_1"},
    {"blk.{}.post_ffw_norm_2", "model.layers.{}.post_feedforward_layernorm_2"},
};

void configure_gemma(GgufConfig& c) {
  configure_llama_like(c, "GemmaForCausalLM", "gemma");
  c.tensors = {kNorms, kLlamaTensors};
}

// The largest models scale scores by hidden size / heads instead of head_dim. Files do not record this; llama.cpp also
// recognizes these models by their depth.
void read_later_gemma(GgufConfig& c, int64_t largest_depth) {
  c.hf["hidden_activation"] = "gelu_pytorch_tanh";
  const bool largest = c.hf["num_hidden_layers"] == largest_depth;
  c.hf["query_pre_attn_scalar"] = largest ? c.hidden() / c.hf["num_attention_heads"].get<int64_t>() : c.head_dim();
  if (c.has("attn_logit_softcapping")) c.number("attn_logit_softcapping", "attn_logit_softcapping");
  if (c.has("final_logit_softcapping")) c.number("final_logit_softcapping", "final_logit_softcapping");
  c.tensors = {kFourNorms, kNorms, kLlamaTensors};
}

void configure_gemma2(GgufConfig& c) {
  configure_llama_like(c, "Gemma2ForCausalLM", "gemma2");
  read_later_gemma(c, 46);
  c.windows(2);
}

void configure_gemma3(GgufConfig& c) {
  configure_llama_like(c, "Gemma3ForCausalLM", "gemma3_text");
  read_later_gemma(c, 62);
  c.windows(6);
  c.hf["rope_local_base_freq"] = c.number_or("rope.freq_base_swa", 10000.0);
}

// EmbeddingGemma. Tokens see half of the window in each direction.
void configure_gemma_embedding(GgufConfig& c) {
  c.hf["use_bidirectional_attention"] = true;
  c.ignore({"attention.causal"});
  c.architecture("Gemma3TextModel", "gemma3_text");
  c.sizes(c.boolean_or("attention.causal", true) ? Causal::kYes : Causal::kNo);
  c.heads();
  c.rope();
  c.integer("feed_forward_length", "intermediate_size");
  c.rms_norm();
  read_later_gemma(c, 62);
  c.windows(6);
  c.hf["rope_local_base_freq"] = c.number_or("rope.freq_base_swa", 10000.0);
  c.ignore({"dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out"});  // shapes of the tensors
  Json dense = Json::array();
  for (const TensorRule& layer : kDense) {
    if (c.has_tensor(fmt::format("{}.weight", layer.gguf))) dense.push_back(layer.hf);
  }
  c.hf["sentence_transformers_dense"] = std::move(dense);
  c.tensors.insert(c.tensors.begin(), kDense);
}

// Returns the number of rows of a required matrix.
int64_t rows_of(const GgufConfig& c, std::string_view tensor, std::string_view key) {
  const TensorEntry* entry = c.tensor(tensor);
  if (entry == nullptr) c.refuse(key, fmt::format("requires the tensor {}", tensor));
  return entry->shape[0];
}

void configure_gemma3n(GgufConfig& c) {
  c.architecture("Gemma3nForCausalLM", "gemma3n_text");
  c.sizes();
  c.heads();
  c.rope();
  c.rms_norm();
  c.windows(5);
  c.hf["rope_local_base_freq"] = c.number_or("rope.freq_base_swa", 10000.0);
  c.hf["intermediate_size"] = c.of_layers("feed_forward_length");
  c.integer("embedding_length_per_layer_input", "hidden_size_per_layer_input");
  c.hf["vocab_size_per_layer_input"] = rows_of(c, "per_layer_token_embd.weight", "embedding_length_per_layer_input");
  c.integer("altup.num_inputs", "altup_num_inputs");
  c.integer("altup.active_idx", "altup_active_idx");
  c.hf["laurel_rank"] = rows_of(c, "blk.0.laurel_l.weight", "altup.num_inputs");
  c.hf["num_kv_shared_layers"] = c.integer_or("attention.shared_kv_layers", 0);
  c.number("final_logit_softcapping", "final_logit_softcapping", false);
  // The file stores quantiles of the normal distribution; -inf means none.
  Json sparsity = Json::array();
  for (const double quantile : c.numbers("activation_sparsity_scale")) {
    sparsity.push_back(std::erfc(-quantile / std::sqrt(2.0)) / 2);
  }
  if (!sparsity.empty()) c.hf["activation_sparsity_pattern"] = std::move(sparsity);
  c.tensors = {kGemma3n, kLlamaTensors};
}

// Reads the heads of each layer. Keys and values share one projection where full layers have none for values.
void read_gemma4_heads(GgufConfig& c) {
  const std::vector<int64_t> kv_heads = c.of_layers("attention.head_count_kv");
  const int64_t full = c.integer("attention.key_length"), sliding = c.integer("attention.key_length_swa");
  if (c.integer("attention.value_length") != full || c.integer("attention.value_length_swa") != sliding) {
    c.refuse("attention.value_length", "must equal attention.key_length");
  }
  c.integer("attention.head_count", "num_attention_heads");
  c.hf["num_key_value_heads"] = kv_heads[0];
  c.hf["head_dim"] = sliding;
  Json each = Json::object();
  bool keys_are_values = false;
  const int64_t own = c.layers() - c.hf["num_kv_shared_layers"].get<int64_t>();
  for (int64_t i = 0; i < c.layers(); ++i) {
    const bool slides = c.hf["layer_types"][i].get_ref<const std::string&>() == "sliding_attention";
    each[std::to_string(i)] = {{"head_dim", slides ? sliding : full}, {"num_key_value_heads", kv_heads[i]}};
    keys_are_values |= !slides && i < own && !c.has_tensor(fmt::format("blk.{}.attn_v.weight", i));
  }
  c.hf["per_layer_config"] = std::move(each);
  c.hf["attention_k_eq_v"] = keys_are_values;
}

// Full layers rotate only their first dimensions. The file expresses this with factors that nearly stop the other ones.
void read_gemma4_ropes(GgufConfig& c) {
  const std::vector<double> factors = c.values("rope_freqs.weight");
  const auto half = static_cast<size_t>(c.integer("rope.dimension_count") / 2);
  size_t turning = 0;
  while (turning < factors.size() && factors[turning] == 1.0) ++turning;
  constexpr double kStill = 1e20;
  const bool rest_stands = std::all_of(factors.begin() + static_cast<std::ptrdiff_t>(turning), factors.end(),
                                       [](double factor) { return factor >= kStill; });
  if (factors.size() != half || turning == 0 || !rest_stands) {
    c.refuse("rope.dimension_count", "rope_freqs has factors that neither keep nor stop a frequency");
  }
  const int64_t sliding = c.hf["head_dim"].get<int64_t>();
  if (c.integer_or("rope.dimension_count_swa", sliding) != sliding) {
    c.refuse("rope.dimension_count_swa", "must equal attention.key_length_swa");
  }
  c.hf["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"rope_theta", c.number_or("rope.freq_base", 1e6)},
        {"partial_rotary_factor", static_cast<double>(turning) / static_cast<double>(half)}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", c.number_or("rope.freq_base_swa", 1e4)}}}};
}

void read_gemma4_mlps(GgufConfig& c) {
  const std::vector<int64_t> inner = c.of_layers("feed_forward_length");
  c.hf["intermediate_size"] = inner[0];
  const int64_t own = c.layers() - c.hf["num_kv_shared_layers"].get<int64_t>();
  const bool doubled = inner.back() != inner[0];
  c.hf["use_double_wide_mlp"] = doubled;
  for (int64_t i = 0; i < c.layers(); ++i) {
    if (inner[i] != (doubled && i >= own ? 2 : 1) * inner[0]) {
      c.refuse("feed_forward_length", "differs between layers in a way that is not supported");
    }
  }
  if (c.integer_or("expert_count", 0) == 0) return;
  c.hf["enable_moe_block"] = true;
  c.experts("num_experts", "moe_intermediate_size");
  c.rename("num_experts_per_tok", "top_k_experts");
}

void configure_gemma4(GgufConfig& c) {
  c.architecture("Gemma4ForCausalLM", "gemma4_text");
  c.sizes();
  c.windows(6);
  c.hf["num_kv_shared_layers"] = c.integer_or("attention.shared_kv_layers", 0);
  read_gemma4_heads(c);
  read_gemma4_ropes(c);
  read_gemma4_mlps(c);
  c.rms_norm();
  c.number("final_logit_softcapping", "final_logit_softcapping", false);
  const int64_t width = c.integer_or("embedding_length_per_layer_input", 0);
  c.hf["hidden_size_per_layer_input"] = width;
  if (width > 0) {
    c.hf["vocab_size_per_layer_input"] = rows_of(c, "per_layer_token_embd.weight", "embedding_length_per_layer_input");
  }
  c.tensors = {kGemma4, kGemma3n, kLlamaTensors};
}

constexpr GgufArchitecture kArchitectures[] = {
    {"gemma", configure_gemma},     {"gemma2", configure_gemma2},
    {"gemma3", configure_gemma3},   {"gemma-embedding", configure_gemma_embedding},
    {"gemma3n", configure_gemma3n}, {"gemma4", configure_gemma4}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::gemma
