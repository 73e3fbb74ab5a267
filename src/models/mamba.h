// Configuration shared by families with Mamba layers.
#pragma once

#include "nn/decoder_config.h"
#include "nn/recurrent/mamba.h"
#include "nn/recurrent/mamba2.h"

namespace sluice {

// Position limit for families without one: their states do not grow.
inline constexpr int kNoPositionLimit = 1 << 20;

// Decoders with only recurrent layers: sizes, norm and names of Mamba's own checkpoints.
DecoderSpec mamba_like(const Config& config, std::string family, bool tied_head);

// Reads "time_step_rank": a number, or "auto" for a sixteenth of the hidden size.
int read_dt_rank(const Config& config, const char* key, int hidden);
// Reads the width of a convolution; refuses one that the op does not support.
int read_conv_width(const Config& config, const char* key, int fallback);

// Reads Mamba's layer from Mamba's own keys. Its width is "intermediate_size" or, without it, "expand" times the hidden
// size.
MambaSpec read_mamba(const Config& config, const DecoderSpec& spec);

// A family's key names for Mamba 2's sizes, with its defaults.
struct Mamba2Keys {
  const char* heads;
  const char* head_dim;  // may be "auto": inner / heads
  const char* groups;
  const char* state;
  const char* conv;
  const char* conv_bias;
  const char* bias;
  const char* activation;
  const char* expand;  // null: the width follows from the heads
  int default_groups = 1;
  int default_state = 256;
  const char* inner = nullptr;  // key that overrides expand * hidden_size
};
Mamba2Spec read_mamba2(const Config& config, const DecoderSpec& spec, const Mamba2Keys& keys);
// The keys of Bamba and its successors.
inline constexpr Mamba2Keys kBambaKeys{.heads = "mamba_n_heads",
                                       .head_dim = "mamba_d_head",
                                       .groups = "mamba_n_groups",
                                       .state = "mamba_d_state",
                                       .conv = "mamba_d_conv",
                                       .conv_bias = "mamba_conv_bias",
                                       .bias = "mamba_proj_bias",
                                       .activation = "hidden_act",
                                       .expand = "mamba_expand"};

// Makes a token mixer of this layer, with its tensors below `name`.
template <class Layer, class Spec>
MakeTokenMixer mixer_of(std::string name, Spec spec) {
  return [name = std::move(name), spec = std::move(spec)](const Weights& layer, int hidden) {
    return std::make_unique<Layer>(layer / name, spec, hidden);
  };
}

// Returns which layers of a hybrid are recurrent, from "layer_types". `recurrent` and `attention` list the accepted
// names; older files use "mamba" and "attention".
std::vector<bool> read_recurrent_layers(const Config& config, const std::vector<std::string>& kinds, const char* key,
                                        int layers);

}  // namespace sluice
