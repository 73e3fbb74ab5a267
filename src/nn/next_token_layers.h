// The layer behind a model's last one that predicts the token after the next (multi-token prediction).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nn/decoder.h"

namespace sluice {

// Where a checkpoint has the layer's tensors. The defaults are those of DeepSeek-V3 and GLM-4.5: layer
// num_hidden_layers has some tensors more than the others.
struct NextTokenNames {
  std::string path{};                     // below DecoderNames::body; empty: the path of the layer behind the last one
  std::string norm = "shared_head.norm";  // below the path; empty: the model's own
  HiddenInputSpec input{};                // without its path
  std::optional<std::string> input_path{};  // below DecoderNames::body; nullopt: the layer's
  bool dense = false;                       // the layer has no experts, though the model's last one has
};

// For ModelFamily::build_predictor. `read` reads the specification of the model, whose embedding and head the layer
// shares. With num_hidden_layers one larger, the last layer of that specification is this one.
std::unique_ptr<Model> next_token_layer(const Config& config, DecoderSpec (*read)(const Config& config),
                                        LoadContext& context, const Model& model, int max_len,
                                        const NextTokenNames& names = {});

}  // namespace sluice
