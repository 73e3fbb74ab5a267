// What GPT-J and CodeGen share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec gptj_like(const Config& config, std::string family);

}  // namespace sluice
