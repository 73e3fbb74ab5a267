// Code shared by the generations of Gemma.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Llama's graph with Gemma's norms, activation and scaled embeddings.
DecoderSpec gemma_like(const Config& config, const LoadContext& context, std::string family, const char* activation_key,
                       const RopeDefaults& rope = {});

// Adds norms before and after both sublayers, the score scale, and soft caps (0: none by default).
void use_gemma2_blocks(const Config& config, DecoderSpec& spec, double soft_cap, double logit_soft_cap);

// Rounds a factor to the weights' type, as the reference does; the rounding is part of the model.
float gemma_factor(const LoadContext& context, double value);

// Makes the last num_kv_shared_layers layers (`fallback` if the key is absent) read the keys and values of the last
// earlier layer of their kind.
void share_gemma_kv(const Config& config, LoadContext& context, DecoderSpec& spec, const std::vector<bool>& sliding,
                    int fallback);

}  // namespace sluice
