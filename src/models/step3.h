// Configuration shared by StepFun's models: Step-3 and Step-3.5.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// Reads sizes, norm, tied head and the names of a layer's parts. `kv_heads`: the key of their number; null: one.
DecoderSpec read_step(const Config& config, std::string family, const char* kv_heads);
// Reads experts and the shared expert beside them; "moe_layers_enum" lists the layers that have them, by default those
// from `first` on. Their tensors are below the layer.
void read_step_experts(const Config& config, DecoderSpec& spec, int first);

}  // namespace sluice
