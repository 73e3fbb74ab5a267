// Code shared by Hunyuan's dense and mixture-of-experts models.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Llama's graph with norms of queries and keys after the rotation.
DecoderSpec hunyuan_like(const Config& config, std::string family);

}  // namespace sluice
