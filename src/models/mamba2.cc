// Mamba 2 (Dao and Gu 2024, arXiv:2405.21060).
#include "models/mamba.h"

namespace sluice::models::mamba2 {
namespace {

constexpr Mamba2Keys kKeys{.heads = "num_heads",
                           .head_dim = "head_dim",
                           .groups = "n_groups",
                           .state = "state_size",
                           .conv = "conv_kernel",
                           .conv_bias = "use_conv_bias",
                           .bias = "use_bias",
                           .activation = "hidden_act",
                           .expand = "expand",
                           .default_groups = 8,
                           .default_state = 128};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mamba_like(config, "mamba2", false);
  const Mamba2Spec mamba = read_mamba2(config, s, kKeys);
  for (LayerSpec& layer : s.layers) layer.mixer = mixer_of<Mamba2>("mixer", mamba);
  // Heads have their own step sizes. The norm always comes after the gate, whatever the files say (as in the
  // reference).
  for (const char* key : {"time_step_rank", "norm_before_gate", "rms_norm"}) config.ignore(key);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "mamba2",
    .architectures = {"Mamba2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"intermediate_size"},  // expand is read instead
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mamba2
