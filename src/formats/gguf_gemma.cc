// GGUF architectures of Gemma: norm weights are stored with the one added that the model adds.
#include <fmt/core.h>

#include <cmath>

#include "formats/gguf_architecture.h"

namespace sluice {
namespace {

using enum TensorForm;

constexpr TensorRule kNorms[] = {
    {"output_norm", "model.norm", kPlusOne},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm", kPlusOne},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", kPlusOne},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", kPlusOne},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
};
constexpr TensorRule kFourNorms[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", kPlusOne},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm", kPlusOne},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", kPlusOne},
};

// Gemma 3n: its norms add nothing.
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

void configure_gemma(GgufConfig& c) {
  configure_llama_like(c, "GemmaForCausalLM", "gemma");
  c.tensors = {kNorms, kLlamaTensors};
}

// The largest models scale scores by the hidden size over the heads and not by head_dim. The files do not say so;
// llama.cpp, too, knows them by their depth.
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

// Rows of a matrix that the file must have.
int64_t rows_of(const GgufConfig& c, std::string_view tensor, std::string_view key) {
  const TensorEntry* entry = c.tensor(tensor);
  if (entry == nullptr) c.refuse(key, fmt::format("needs the tensor {}", tensor));
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
  // The file has quantiles of the normal distribution, -inf for none.
  Json sparsity = Json::array();
  for (const double quantile : c.numbers("activation_sparsity_scale")) {
    sparsity.push_back(std::erfc(-quantile / std::sqrt(2.0)) / 2);
  }
  if (!sparsity.empty()) c.hf["activation_sparsity_pattern"] = std::move(sparsity);
  c.tensors = {kGemma3n, kLlamaTensors};
}

constexpr GgufArchitecture kArchitectures[] = {{"gemma", configure_gemma},
                                               {"gemma2", configure_gemma2},
                                               {"gemma3", configure_gemma3},
                                               {"gemma3n", configure_gemma3n}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice
