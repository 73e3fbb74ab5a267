// Code shared by LFM2's dense and mixture-of-experts models.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Reads sizes, attention, short convolutions and names. The family adds its MLP.
DecoderSpec lfm2_like(const Config& config, std::string family);

}  // namespace sluice
