// Code shared by GPT-J and CodeGen.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec gptj_like(const Config& config, std::string family);

}  // namespace sluice
