// Code shared by Command R and its successors.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec cohere_like(const Config& config, std::string family, const RopeDefaults& rope);

}  // namespace sluice
