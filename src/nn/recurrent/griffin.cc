// Griffin: projections, convolution, recurrent unit and gates.
#include "nn/recurrent/griffin.h"

#include <cmath>

namespace sluice {
namespace {

// Reads tensor NAME_gate_weight [heads, inputs, outputs].
StackedLinear load_gate(const Weights& w, const std::string& name, int heads, int64_t dim) {
  LoadContext& context = w.context();
  StackedLinear gate(context, context.dtype, heads, dim, dim);
  const TensorEntry* entry = w.tensor(name, {heads, dim, dim});
  if (entry == nullptr || !context.packs()) return gate;
  Tensor all = entry->view();
  all.shape = {heads * dim, dim};
  all.row_stride = dim;
  for (int head = 0; head < heads; ++head) {
    Buffer memory;
    gate.pack(context, head, 0, transpose(all.slice_rows(head * dim, dim), memory));
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

}  // namespace

Griffin::Griffin(const Weights& w, const GriffinSpec& s, int hidden)
    : spec_(s),
      in_(w, {{"linear_x", s.width}, {"linear_y", s.width}}, hidden, true),
      out_(w, {{"linear_out", hidden}}, s.width, true),
      conv_(w, "conv_1d", s.conv()),
      input_gate_(load_gate(w / "rg_lru", "input_gate_weight", s.heads, s.width / s.heads)),
      recurrent_gate_(load_gate(w / "rg_lru", "recurrent_gate_weight", s.heads, s.width / s.heads)),
      input_bias_(w.context(), (w / "rg_lru").vector("input_gate_bias", Shape{s.heads, s.width / s.heads})),
      recurrent_bias_(w.context(), (w / "rg_lru").vector("recurrent_gate_bias", Shape{s.heads, s.width / s.heads})),
      rate_(w.context(), rates((w / "rg_lru").vector("recurrent_param", s.width))) {}

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
