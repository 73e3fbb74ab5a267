// What LFM2's dense and mixture-of-experts models share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Sizes, attention, short convolutions, names; the MLP is the family's.
DecoderSpec lfm2_like(const Config& config, std::string family);

}  // namespace sluice
