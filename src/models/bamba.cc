// Bamba: Mamba 2 with a few attention layers that rotate half of each head's dimensions.
#include <fmt/core.h>

#include "models/mamba.h"

namespace sluice::models::bamba {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "bamba", {.norm_eps = 1e-5, .rope = {.partial = 0.5}});
  if (config.get("partial_rotary_factor", 0.5) != 0.5) {
    config.refuse("partial_rotary_factor", "must be 0.5: the reference reads another value in rope_parameters alone");
  }
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  const int rotated = config.get("attn_rotary_emb", s.ropes[0].rotary_dim);
  if (rotated != s.ropes[0].rotary_dim) {
    config.refuse("attn_rotary_emb", fmt::format("{} contradicts partial_rotary_factor ({} of {})", rotated,
                                                 s.ropes[0].rotary_dim, s.attention.head_dim));
  }
  const Mamba2Spec mamba = read_mamba2(config, s, kBambaKeys);
  for (LayerSpec& layer : s.layers) layer.mixer = mixer_of<Mamba2>("mamba", mamba);
  for (const int i : config.get("attn_layer_indices", std::vector<int>{})) {
    if (i < 0 || i >= s.depth())
      config.refuse("attn_layer_indices", fmt::format("layer {} does not exist in a model of {} layers", i, s.depth()));
    s.layers[i].mixer = nullptr;
  }
  s.names.norm = "final_layernorm";
  s.names.mlp = "feed_forward";
  s.names.mlp_norm = "pre_ff_layernorm";
  for (const char* key : {"num_logits_to_keep", "z_loss_coefficient", "layer_types", "layers_block_type"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "bamba", .architectures = {"BambaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::bamba
