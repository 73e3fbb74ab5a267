// GGUF architectures with fused projections, LayerNorm or non-rotary positions: GPT-2 to MPT.
#include "formats/gguf/architecture.h"

namespace sluice::gguf::gpt {
namespace {

using enum TensorForm;

constexpr TensorRule kGpt2[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
    {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn", kTransposed},
    {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj", kTransposed},
    {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc", kTransposed},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj", kTransposed},
};
constexpr TensorRule kJais[] = {
    {"blk.{}.ffn_gate", "transformer.h.{}.mlp.c_fc2", kTransposed},
};
constexpr TensorRule kStarcoder[] = {
    {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"},
    {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"},
};
constexpr TensorRule kNeox[] = {
    {"token_embd", "gpt_neox.embed_in"},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out"},
    {"blk.{}.attn_norm", "gpt_neox.layers.{}.input_layernorm"},
    {"blk.{}.attn_qkv", "gpt_neox.layers.{}.attention.query_key_value", kGroupedQkv},
    {"blk.{}.attn_output", "gpt_neox.layers.{}.attention.dense"},
    {"blk.{}.ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"},
    {"blk.{}.ffn_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"},
};
// BLOOM and Falcon.
constexpr TensorRule kBloom[] = {
    {"token_embd", "transformer.word_embeddings"},
    {"token_embd_norm", "transformer.word_embeddings_layernorm"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.h.{}.input_layernorm"},
    {"blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value", kGroupedQkv},
    {"blk.{}.attn_output", "transformer.h.{}.self_attention.dense"},
    {"blk.{}.ffn_norm", "transformer.h.{}.post_attention_layernorm"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"},
};
constexpr TensorRule kTwoNormFalcon[] = {
    {"blk.{}.attn_norm", "transformer.h.{}.ln_mlp"},
    {"blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"},
};
constexpr TensorRule kMpt[] = {
    {"token_embd", "transformer.wte"},
    {"output_norm", "transformer.norm_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.blocks.{}.norm_1"},
    {"blk.{}.attn_qkv", "transformer.blocks.{}.attn.Wqkv"},
    {"blk.{}.attn_output", "transformer.blocks.{}.attn.out_proj"},
    {"blk.{}.ffn_norm", "transformer.blocks.{}.norm_2"},
    {"blk.{}.ffn_up", "transformer.blocks.{}.ffn.up_proj"},
    {"blk.{}.ffn_down", "transformer.blocks.{}.ffn.down_proj"},
};

constexpr TensorRule kQwen1[] = {
    {"token_embd", "transformer.wte"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
    {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"},
    {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj"},
    {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
    {"blk.{}.ffn_gate", "transformer.h.{}.mlp.w2"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.w1"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"},
};

// Reads sizes and heads under GPT-2's keys.
void read_gpt2_sizes(GgufConfig& c) {
  c.sizes();
  c.heads();
  c.integer("feed_forward_length", "n_inner");
  c.rename("hidden_size", "n_embd");
  c.rename("num_hidden_layers", "n_layer");
  c.rename("num_attention_heads", "n_head");
  c.rename("max_position_embeddings", "n_positions");
  c.layer_norm("layer_norm_epsilon");
}

void read_one_head_count(GgufConfig& c) {
  if (c.hf["num_key_value_heads"] != c.hf["n_head"]) {
    c.refuse("attention.head_count_kv", "must equal attention.head_count");
  }
  c.rename("num_key_value_heads", "");
}

void configure_gpt2(GgufConfig& c) {
  c.architecture("GPT2LMHeadModel", "gpt2");
  read_gpt2_sizes(c);
  read_one_head_count(c);
  c.tensors = {kGpt2};
}

// The converter multiplied embeddings and head by their factors. llama.cpp's graph always divides scores by the width
// of a head.
void configure_jais(GgufConfig& c) {
  c.architecture("JAISLMHeadModel", "jais");
  read_gpt2_sizes(c);
  read_one_head_count(c);
  c.hf["activation_function"] = "swiglu";
  c.hf["position_embedding_type"] = "alibi";
  c.hf["scale_qk_dot_by_d"] = true;
  if (c.number_or("attention.max_alibi_bias", 8.0) != 8.0) c.refuse("attention.max_alibi_bias", "must be 8");
  c.tensors = {kJais, kGpt2};
}

void configure_starcoder(GgufConfig& c) {
  c.architecture("GPTBigCodeForCausalLM", "gpt_bigcode");
  read_gpt2_sizes(c);
  if (c.hf["num_key_value_heads"] != 1) c.refuse("attention.head_count_kv", "must be 1");
  c.tensors = {kStarcoder, kGpt2};
}

// Qwen, the first generation.
void configure_qwen1(GgufConfig& c) {
  c.architecture("QWenLMHeadModel", "qwen");
  c.sizes();
  c.heads();
  c.rope();
  if (c.hf["num_key_value_heads"] != c.hf["num_attention_heads"]) {
    c.refuse("attention.head_count_kv", "must equal attention.head_count");
  }
  for (const auto& [from, to] : {std::pair{"num_key_value_heads", ""},
                                 {"head_dim", "kv_channels"},
                                 {"rope_theta", "rotary_emb_base"},
                                 {"partial_rotary_factor", "rotary_pct"}}) {
    c.rename(from, to);
  }
  c.integer("feed_forward_length", "intermediate_size");  // of gate and up together
  c.number("attention.layer_norm_rms_epsilon", "layer_norm_epsilon");
  c.tensors = {kQwen1};
}

void configure_gptneox(GgufConfig& c) {
  c.architecture("GPTNeoXForCausalLM", "gpt_neox");
  c.sizes();
  c.heads();
  c.rope();
  c.rename("num_key_value_heads", "");
  c.integer("feed_forward_length", "intermediate_size");
  c.layer_norm("layer_norm_eps");
  c.hf["use_parallel_residual"] = c.boolean_or("use_parallel_residual", true);
  c.tensors = {kNeox};
}

void configure_bloom(GgufConfig& c) {
  c.architecture("BloomForCausalLM", "bloom");
  c.sizes();
  c.heads();
  c.rename("num_key_value_heads", "");
  c.rename("max_position_embeddings", "seq_length");
  if (c.integer("feed_forward_length") != 4 * c.hidden()) {
    c.refuse("feed_forward_length", "must be 4 * embedding_length");
  }
  c.layer_norm("layer_norm_epsilon");
  c.tensors = {kBloom};
}

// Falcon 40B and later have several key-value heads. 40B itself has one norm per sublayer.
void configure_falcon(GgufConfig& c) {
  c.architecture("FalconForCausalLM", "falcon");
  c.sizes();
  c.heads();
  c.rope();
  const bool modern = c.hf["num_key_value_heads"] != 1, two_norms = c.has_tensor("blk.0.attn_norm_2.weight");
  c.rename("num_key_value_heads", modern ? "num_kv_heads" : "");
  c.hf["new_decoder_architecture"] = modern;
  c.hf["multi_query"] = true;
  c.hf["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  c.integer("feed_forward_length", "ffn_hidden_size");
  c.layer_norm("layer_norm_epsilon");
  c.tensors = {kBloom};
  if (two_norms) c.tensors = {kTwoNormFalcon, kBloom};
}

void configure_mpt(GgufConfig& c) {
  c.architecture("MptForCausalLM", "mpt");
  c.sizes();
  c.heads();
  if (c.hf["num_key_value_heads"] != c.hf["num_attention_heads"]) {
    c.refuse("attention.head_count_kv", "must equal attention.head_count");
  }
  c.rename("num_key_value_heads", "");
  c.rename("hidden_size", "d_model");
  c.rename("num_hidden_layers", "n_layers");
  c.rename("num_attention_heads", "n_heads");
  c.rename("max_position_embeddings", "max_seq_len");
  if (c.integer("feed_forward_length") != 4 * c.hidden()) {
    c.refuse("feed_forward_length", "must be 4 * embedding_length");
  }
  c.layer_norm("layer_norm_epsilon");
  c.hf["attn_config"] = Json{{"alibi", true}, {"alibi_bias_max", c.number_or("attention.max_alibi_bias", 8.0)}};
  if (c.has("attention.clamp_kqv")) c.hf["attn_config"]["clip_qkv"] = c.number("attention.clamp_kqv");
  c.tensors = {kMpt};
}

constexpr GgufArchitecture kArchitectures[] = {
    {"gpt2", configure_gpt2},   {"starcoder", configure_starcoder}, {"gptneox", configure_gptneox},
    {"bloom", configure_bloom}, {"falcon", configure_falcon},       {"mpt", configure_mpt},
    {"jais", configure_jais},   {"qwen", configure_qwen1},
};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::gpt
