// What the generations of Gemma share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Llama's graph with Gemma's norms, activation and scaled embeddings.
DecoderSpec gemma_like(const Config& config, const LoadContext& context, std::string family, const char* activation_key,
                       const RopeDefaults& rope = {});

// Norms before and after both halves of a block, the scale of the scores, soft caps (0: none unless asked for).
void use_gemma2_blocks(const Config& config, DecoderSpec& spec, double soft_cap, double logit_soft_cap);

// The reference keeps factors in the type of the weights: the rounding is part of the model.
float gemma_factor(const LoadContext& context, double value);

// The last num_kv_shared_layers layers (`fallback`: when the key is absent) read the keys and values of the last layer
// of their kind before them.
void share_gemma_kv(const Config& config, LoadContext& context, DecoderSpec& spec, const std::vector<bool>& sliding,
                    int fallback);

}  // namespace sluice
