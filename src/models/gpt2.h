// Code shared by GPT-2 and models derived from it.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

inline constexpr SizeKeys kGpt2Keys{.hidden = "n_embd",
                                    .layers = "n_layer",
                                    .heads = "n_head",
                                    .kv_heads = nullptr,
                                    .inner = "n_inner",
                                    .inner_is_four_hidden = true,
                                    .max_positions = "n_positions",
                                    .default_max_positions = 1024};

// Tensor names below "transformer", as in the original code.
DecoderNames gpt2_names();
// Reads sizes, learned positions, LayerNorms and a plain MLP with biases; uses GPT-2's names.
DecoderSpec gpt2_like(const Config& config, std::string family, const SizeKeys& keys, const char* activation);
// Uses one matrix for queries, keys and values, reads "scale_attn_weights", and ignores keys without influence.
void read_gpt2_attention(const Config& config, DecoderSpec& spec);

}  // namespace sluice
