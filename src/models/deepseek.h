// What DeepSeek's models and those made after them share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Sizes, norm, activation, head, and latent attention in all layers (nn/latent_attention.h).
DecoderSpec latent_llama_like(const Config& config, std::string family);
// The layers with experts: moe_layer_freq, from first_k_dense_replace on.
void read_deepseek_layers(const Config& config, DecoderSpec& spec);

}  // namespace sluice
