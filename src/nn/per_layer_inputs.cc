// Computes per-layer inputs: table, projections and gates.
#include "nn/per_layer_inputs.h"

#include <cmath>

namespace sluice {

PerLayerInputs::PerLayerInputs(const Weights& body, const PerLayerInputSpec& s, int hidden)
    : spec_(s),
      hidden_(hidden),
      table_(body, "embed_tokens_per_layer", s.vocab, floats_kept()),
      projection_(body, {{"per_layer_model_projection", floats_kept()}}, hidden, false),
      norm_(body, "per_layer_projection_norm", s.width, s.norm) {
  for (int i = 0; i < s.layers; ++i) {
    const Weights w = body / s.layer_path / std::to_string(i);
    const Linear::Part gate{.name = "per_layer_input_gate", .outputs = s.width, .input_scale = s.input_scale};
    layers_.push_back({Linear(w, {gate}, hidden, false), Linear(w, {{"per_layer_projection", hidden}}, s.width, false),
                       Norm(w, "post_per_layer_input_norm", hidden, s.norm)});
  }
}

Tensor PerLayerInputs::of(ops::Ctx& c, const BatchView& batch, const Tensor& x) {
  const Tensor inputs = projection_(c, x);
  ops::map(c, inputs, ops::Map::kScale, 1.0f / std::sqrt(static_cast<float>(hidden_)));
  Tensor by_layer = inputs;
  by_layer.shape = {x.rows(), spec_.layers, spec_.width};
  norm_.in_place(c, by_layer);
  Arena::Scope scope(c.arena);
  if (spec_.clips) {
    ids_.assign(batch.tokens.begin(), batch.tokens.end());
    for (int32_t& id : ids_) id = id < spec_.vocab ? id : 0;
  }
  ops::add(c, inputs, table_(c, spec_.clips ? Indices(ids_) : batch.tokens), spec_.table_scale);
  ops::map(c, inputs, ops::Map::kScale, spec_.sum_scale);
  return inputs;
}

Tensor PerLayerInputs::added(ops::Ctx& c, int i, const Tensor& inputs, const Tensor& x) const {
  const Layer& layer = layers_[i];
  const Tensor gated = layer.gate(c, x);
  ops::unary(c, gated, spec_.activation);
  ops::multiply(c, gated, inputs.slice_columns(int64_t{i} * spec_.width, spec_.width));
  const Tensor out = layer.projection(c, gated);
  layer.norm.in_place(c, out);
  return out;
}

}  // namespace sluice
