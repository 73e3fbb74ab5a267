// Granite 4: Mamba 2 and attention layers, with experts and a shared MLP, or only the MLP.
#include <fmt/core.h>

#include "models/granite.h"
#include "models/mamba.h"

namespace sluice::models::granitemoehybrid {
namespace {

void read_positions(const Config& config, DecoderSpec& s) {
  const auto kind = config.get("position_embedding_type", std::string("nope"));
  if (kind == "rope") return;
  if (kind != "nope")
    config.refuse("position_embedding_type", fmt::format("unknown value '{}' (expected rope or nope)", kind));
  for (LayerSpec& layer : s.layers) layer.rope = -1;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_like(config, "granitemoehybrid");
  const int shared = read_positive(config, "shared_intermediate_size", config.get("shared_intermediate_size", 1024));
  if (config.get("num_local_experts", 8) > 0) {
    read_granite_experts(config, s);
    add_granite_shared_mlp(s, shared);
  } else {
    s.names.mlp = "shared_mlp";
    s.mlp.inner = shared;
    s.mlp.in = {"input_linear"};
    s.mlp.out = "output_linear";
    config.ignore("num_experts_per_tok");
  }
  read_positions(config, s);
  const Mamba2Spec mamba = read_mamba2(config, s, kBambaKeys);
  const char* key = config.has("layer_types") ? "layer_types" : "layers_block_type";
  const auto kinds = config.get(key, std::vector<std::string>(s.layers.size(), "mamba"));
  const std::vector<bool> recurrent = read_recurrent_layers(config, kinds, key, s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    if (recurrent[i]) s.layers[i].mixer = mixer_of<Mamba2>("mamba", mamba);
  }
  for (const char* unused : {"layers_block_type", "normalization_function", "init_method"}) config.ignore(unused);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "granitemoehybrid", .architectures = {"GraniteMoeHybridForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::granitemoehybrid
