// Code shared by Mixtral and its relatives.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Mistral's graph with experts w1, w2 and w3 in all layers, weighted by a softmax over the chosen ones.
DecoderSpec mixtral_like(const Config& config, std::string family);
// Reads the experts' tensor names and the keys for their number.
void read_mixtral_experts(const Config& config, DecoderSpec& spec);

}  // namespace sluice
