// GGUF architectures of Gemma: norm weights are stored with the one added that the model adds.
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

constexpr GgufArchitecture kArchitectures[] = {
    {"gemma", configure_gemma}, {"gemma2", configure_gemma2}, {"gemma3", configure_gemma3}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice
