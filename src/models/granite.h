// What Granite's dense and mixture-of-experts models share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec granite_like(const Config& config, std::string family);

}  // namespace sluice
