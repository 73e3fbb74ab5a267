// Phi 3 and 4: Llama's graph with fused projections (arXiv:2404.14219).
#include "nn/decoder_config.h"

namespace sluice::models::phi3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "phi3", {.norm_eps = 1e-5});
  s.attention.qkv = {"qkv_proj"};
  s.mlp.in = {"gate_up_proj"};
  read_one_window(config, s, 0);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "phi3",
    .architectures = {"Phi3ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"full_attn_mod", "1"},
            {"interpolate_factor", "1"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::phi3
