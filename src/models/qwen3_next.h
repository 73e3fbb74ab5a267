// What Qwen's hybrids of gated delta nets and gated attention share.
#pragma once

#include "nn/decoder_config.h"
#include "nn/recurrent/delta_net.h"

namespace sluice {

// Llama's graph with Qwen 3's attention, gated, and delta nets in the layers that "layer_types" names.
DecoderSpec qwen3_next_like(const Config& config, LoadContext& context, std::string family, DeltaNetLayout layout);
// Experts beside a shared one behind a gate.
void read_qwen3_next_experts(const Config& config, DecoderSpec& spec, bool normalize);

}  // namespace sluice
