// Griffin: projections, convolution, recurrent unit and gates.
#include "nn/recurrent/griffin.h"

#include <cmath>

namespace sluice {
namespace {

// Reads the matrices of some heads from tensor NAME_gate_weight [heads, inputs, outputs].
StackedLinear load_gate(const Weights& w, const std::string& name, int heads, RowRange kept, int64_t dim) {
  LoadContext& context = w.context();
  StackedLinear gate(context, context.dtype, static_cast<int>(kept.count), dim, dim);
  const TensorEntry* entry = w.tensor(name, {heads, dim, dim});
  if (entry == nullptr || !context.packs()) return gate;
  Tensor all = entry->view();
  all.shape = {heads * dim, dim};
  all.row_stride = dim;
  for (int head = 0; head < gate.count(); ++head) {
    Buffer memory;
    gate.pack(context, head, 0, transpose(all.slice_rows((kept.begin + head) * dim, dim), memory));
  }
  return gate;
}

// Returns -8 softplus(x) for each parameter.
std::vector<float> rates(std::vector<float> parameters) {
  constexpr double kC = 8.0;  // the constant c of the paper
  for (float& v : parameters) {
    v = static_cast<float>(-kC * (std::max(v, 0.0f) + std::log1p(std::exp(-std::abs(double{v})))));
  }
  return parameters;
}

// The channels of some heads, as ranges of a tensor that has all channels `copies` times. Empty: all.
std::vector<RowRange> channels(const GriffinSpec& s, const std::optional<RowRange>& heads, int copies) {
  std::vector<RowRange> kept;
  for (int i = 0; heads && i < copies; ++i) kept.push_back(scaled(*heads, s.width / s.heads, i * int64_t{s.width}));
  return kept;
}

Linear::Split out_split(const GriffinSpec& s, const std::optional<RowRange>& heads) {
  if (!heads) return {};
  return {.inputs = scaled(*heads, s.width / s.heads)};
}

}  // namespace

Griffin::Griffin(const Weights& w, const GriffinSpec& s, int hidden)
    : Griffin(w, s, hidden, even_part(w.context().ranks, s.heads)) {}

Griffin::Griffin(const Weights& w, const GriffinSpec& s, int hidden, const std::optional<RowRange>& heads)
    : spec_(s),
      in_(w, {{"linear_x", s.width}, {"linear_y", s.width}}, hidden, true, {.outputs = channels(s, heads, 2)}),
      out_(w, {{"linear_out", hidden}}, s.width, true, out_split(s, heads)),
      conv_(w, "conv_1d", s.conv(), channels(s, heads, 1)) {
  const Weights unit = w / "rg_lru";
  LoadContext& context = w.context();
  const int64_t dim = s.width / s.heads;
  const RowRange kept = heads.value_or(RowRange{0, s.heads});
  const std::vector<RowRange> mine = channels(s, heads, 1);
  const Shape by_head{s.heads, dim};
  input_gate_ = load_gate(unit, "input_gate_weight", s.heads, kept, dim);
  recurrent_gate_ = load_gate(unit, "recurrent_gate_weight", s.heads, kept, dim);
  input_bias_ = Vector(context, picked(unit.vector("input_gate_bias", by_head), mine));
  recurrent_bias_ = Vector(context, picked(unit.vector("recurrent_gate_bias", by_head), mine));
  rate_ = Vector(context, picked(rates(unit.vector("recurrent_param", s.width)), mine));
  spec_.heads = static_cast<int>(kept.count);
  spec_.width = static_cast<int>(kept.count * dim);
}

void Griffin::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                         bool accumulate) const {
  const int64_t width = spec_.width, dim = width / spec_.heads, conv_values = spec_.conv().state_values();
  const Tensor projected = in_(c, x);
  const Tensor y = conv_(c, step, projected.slice_columns(0, width), step.state.slice_columns(0, conv_values));
  const Tensor input_gate = c.arena.take(&kFloat32, y.shape), recurrent_gate = c.arena.take(&kFloat32, y.shape);
  input_gate_.heads(c, input_gate, dim, y, dim);
  recurrent_gate_.heads(c, recurrent_gate, dim, y, dim);
  ops::gated_lru(c, {.out = y,
                     .x = y,
                     .input_gate = input_gate,
                     .recurrent_gate = recurrent_gate,
                     .input_bias = input_bias_.data(),
                     .recurrent_bias = recurrent_bias_.data(),
                     .rate = rate_.data(),
                     .state = step.state.slice_columns(conv_values, width),
                     .sequences = step.sequences()});
  ops::multiply(c, y, projected.slice_columns(width, width), spec_.activation);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
