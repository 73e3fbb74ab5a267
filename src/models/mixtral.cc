// Mixtral: Mistral with experts (Jiang et al. 2024, arXiv:2401.04088).
#include "models/mixtral.h"

namespace sluice {

void read_mixtral_experts(const Config& config, DecoderSpec& s) {
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = true;
  s.moe.gate = "w1";
  s.moe.up = "w3";
  s.moe.down = "w2";
  s.names.mlp = "block_sparse_moe";
  config.ignore("router_jitter_noise");  // training only
}

DecoderSpec mixtral_like(const Config& config, std::string family) {
  DecoderSpec s = llama_like(config, std::move(family), {.norm_eps = 1e-5, .rope = {.theta = 1000000.0}});
  read_one_window(config, s, 0);
  read_mixtral_experts(config, s);
  return s;
}

}  // namespace sluice

namespace sluice::models::mixtral {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return decoder_lm(mixtral_like(config, "mixtral"), context, max_len);
}

const ModelFamily family{.name = "mixtral", .architectures = {"MixtralForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mixtral
