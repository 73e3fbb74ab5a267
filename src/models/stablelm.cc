// StableLM: Llama's graph with LayerNorms; rotates a quarter of each head; parallel blocks if configured.
#include "nn/decoder_config.h"

namespace sluice::models::stablelm {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "stablelm", {.rope = {.partial = config.get("rope_pct", 0.25)}});
  s.norm = read_layer_norm(config, config.has("norm_eps") ? "norm_eps" : "layer_norm_eps");
  s.attention.qkv_bias = config.get("use_qkv_bias", false);
  s.parallel = config.get("use_parallel_residual", false);
  if (s.parallel) s.names.mlp_norm = "";
  if (config.get("qk_layernorm", false)) {
    s.attention.qk_norm = QkNorm::kEachHead;
    s.attention.norm_per_head_tensors = true;
    s.attention.qk_norm_spec = read_layer_norm(config, "layer_norm_eps", false);
    s.attention.q_norm = "q_layernorm";
    s.attention.k_norm = "k_layernorm";
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "stablelm",
    .architectures = {"StableLmForCausalLM", "StableLMEpochForCausalLM"},
    .build = build,
    .ignored =
        {
            {"num_heads"},
            {"rotary_scaling_factor", "1.0"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::stablelm
