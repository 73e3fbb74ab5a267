// What Phi and Persimmon share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// LayerNorms, also of queries and keys where "qk_layernorm" says so, half of every head rotated, a plain MLP, biases.
DecoderSpec phi_like(const Config& config, std::string family, const SizeKeys& keys, bool qk_norm,
                     const char* activation);

}  // namespace sluice
