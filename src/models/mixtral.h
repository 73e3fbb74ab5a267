// What Mixtral's relatives share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Mistral's graph, experts w1, w2 and w3 in all layers, weighted by a softmax over the chosen ones.
DecoderSpec mixtral_like(const Config& config, std::string family);
// Their names, and the keys that say how many there are.
void read_mixtral_experts(const Config& config, DecoderSpec& spec);

}  // namespace sluice
