// What GPT-2 and the models made after it share.
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

// Tensors below "transformer", as the papers' code called them.
DecoderNames gpt2_names();
// Sizes, learned positions, LayerNorms, a plain MLP with biases, GPT-2's names.
DecoderSpec gpt2_like(const Config& config, std::string family, const SizeKeys& keys, const char* activation);
// One matrix for queries, keys and values, "scale_attn_weights", and keys without influence here.
void read_gpt2_attention(const Config& config, DecoderSpec& spec);

}  // namespace sluice
