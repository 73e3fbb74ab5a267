// Configuration shared by PLaMo 2 and 3 (Preferred Networks).
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Reads sizes, norms, the MLP and the names of the tensors. `head_dim`: the key of the heads' size.
DecoderSpec plamo_like(const Config& config, std::string family, const char* head_dim);

}  // namespace sluice
