// A decoder of one layer, which continues the model.
#include "nn/next_token_layers.h"

#include <fmt/core.h>

#include <utility>

#include "base/json.h"

namespace sluice {

std::unique_ptr<Model> next_token_layer(const Config& config, DecoderSpec (*read)(const Config& config),
                                        LoadContext& context, const Model& model, int max_len,
                                        const NextTokenNames& names) {
  constexpr const char* kCount = "num_nextn_predict_layers";
  if (const int count = config.get(kCount, 0); count > 1) {
    config.refuse(kCount, fmt::format("{} cannot draft (expected 1)", count));
  }
  constexpr const char* kLayers = "num_hidden_layers";
  Json values = config.values();
  values[kLayers] = config.at<int>(kLayers) + 1;
  for (const char* key : {"layer_types", "mlp_layer_types"}) {  // the layer is like the last one
    const auto types = values.find(key);
    if (types != values.end() && types->is_array() && !types->empty()) types->push_back(Json(types->back()));
  }
  DecoderSpec s = read(Config(std::move(values), config.origin()));
  LayerSpec layer = std::move(s.layers.back());
  layer.path = names.path.empty() ? fmt::format("{}.{}", s.names.layers, s.depth() - 1) : names.path;
  if (names.dense) layer.moe = false;
  if (!names.norm.empty()) s.names.norm = layer.path + "." + names.norm;
  s.hidden_input = names.input;
  s.hidden_input->path = names.input_path.value_or(layer.path);
  s.tables = model.tables();
  s.layers = {std::move(layer)};
  return decoder_lm(std::move(s), context, max_len);
}

}  // namespace sluice
