// Code shared by Phi and Persimmon.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// LayerNorms, also of queries and keys if "qk_layernorm" says so; rotates half of each head; a plain MLP; biases.
DecoderSpec phi_like(const Config& config, std::string family, const SizeKeys& keys, bool qk_norm,
                     const char* activation);

}  // namespace sluice
