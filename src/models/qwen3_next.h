// Code shared by Qwen's hybrids of gated delta nets and gated attention.
#pragma once

#include "nn/decoder_config.h"
#include "nn/recurrent/delta_net.h"

namespace sluice {

// Llama's graph with Qwen 3's attention plus a gate, and delta nets in the layers that "layer_types" names.
// `only_experts`: all layers have experts, and intermediate_size may be absent.
DecoderSpec qwen3_next_like(const Config& config, LoadContext& context, std::string family, DeltaNetLayout layout,
                            bool only_experts = false);
// Adds routed experts, and a shared expert behind a gate.
void read_qwen3_next_experts(const Config& config, DecoderSpec& spec, bool normalize);

}  // namespace sluice
