// What families with Mamba's layers read alike.
#pragma once

#include "nn/decoder_config.h"
#include "nn/recurrent/mamba.h"
#include "nn/recurrent/mamba2.h"

namespace sluice {

// A limit for families that have none: their states do not grow.
inline constexpr int kNoPositionLimit = 1 << 20;

// Decoders of nothing but recurrent layers: sizes, norm and names of Mamba's own checkpoints.
DecoderSpec mamba_like(const Config& config, std::string family, bool tied_head);

// "time_step_rank": a number, or "auto" for a sixteenth of the hidden size.
int read_dt_rank(const Config& config, const char* key, int hidden);
// The width of a convolution, as far as the op goes.
int read_conv_width(const Config& config, const char* key, int fallback);

// Mamba's layer by Mamba's own keys. Its width is "intermediate_size", or without it "expand" times the hidden size.
MambaSpec read_mamba(const Config& config, const DecoderSpec& spec);

// How a family spells Mamba 2's sizes, with its own defaults.
struct Mamba2Keys {
  const char* heads;
  const char* head_dim;  // "auto" is inner / heads
  const char* groups;
  const char* state;
  const char* conv;
  const char* conv_bias;
  const char* bias;
  const char* activation;
  const char* expand;  // null: the width is that of the heads
  int default_groups = 1;
  int default_state = 256;
  const char* inner = nullptr;  // a key that overrides expand * hidden_size
};
Mamba2Spec read_mamba2(const Config& config, const DecoderSpec& spec, const Mamba2Keys& keys);
// The keys of Bamba and those after it.
inline constexpr Mamba2Keys kBambaKeys{.heads = "mamba_n_heads",
                                       .head_dim = "mamba_d_head",
                                       .groups = "mamba_n_groups",
                                       .state = "mamba_d_state",
                                       .conv = "mamba_d_conv",
                                       .conv_bias = "mamba_conv_bias",
                                       .bias = "mamba_proj_bias",
                                       .activation = "hidden_act",
                                       .expand = "mamba_expand"};

// A mixer of such a layer, with its tensors below `name`.
template <class Layer, class Spec>
MakeTokenMixer mixer_of(std::string name, Spec spec) {
  return [name = std::move(name), spec = std::move(spec)](const Weights& layer, int hidden) {
    return std::make_unique<Layer>(layer / name, spec, hidden);
  };
}

// "layer_types" for hybrids: which layers are recurrent. `recurrent` and `attention` are the words for them; older
// files say "mamba" and "attention".
std::vector<bool> read_recurrent_layers(const Config& config, const std::vector<std::string>& kinds, const char* key,
                                        int layers);

}  // namespace sluice
