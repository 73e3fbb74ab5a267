// The layer behind a model's last one that predicts the token after the next (multi-token prediction), as the
// checkpoints of DeepSeek-V3 and GLM-4.5 store it: layer num_hidden_layers, with enorm, hnorm, eh_proj and
// shared_head.norm beside the tensors of a layer.
#pragma once

#include <memory>

#include "nn/decoder.h"

namespace sluice {

// For ModelFamily::build_predictor. `read` reads the specification of the model, whose embedding and head the layer
// shares; so would the same specification with a layer more describe this one.
std::unique_ptr<Model> next_token_layer(const Config& config, DecoderSpec (*read)(const Config& config),
                                        LoadContext& context, const Model& model, int max_len);

}  // namespace sluice
