// Falcon Mamba: Mamba with norms of the step sizes and of the state projections (arXiv:2410.05355).
#include "models/mamba.h"

namespace sluice::models::falcon_mamba {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mamba_like(config, "falcon_mamba", true);
  MambaSpec mamba = read_mamba(config, s);
  mamba.norms = true;
  mamba.norm = {.eps = static_cast<float>(config.get("mixer_rms_eps", 1e-6)), .weight = false};
  for (LayerSpec& layer : s.layers) layer.mixer = mixer_of<Mamba>("mixer", mamba);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "falcon_mamba", .architectures = {"FalconMambaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::falcon_mamba
