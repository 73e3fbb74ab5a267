// Mamba: projections, convolution, scan, gate.
#include "nn/recurrent/mamba.h"

#include <limits>

namespace sluice {

namespace {

// The channels of a rank, as ranges of a tensor that has all channels `copies` times. Empty: all.
std::vector<RowRange> channels(const MambaSpec& s, const std::optional<RowRange>& part, int copies, int64_t width = 1) {
  std::vector<RowRange> kept;
  for (int i = 0; part && i < copies; ++i) kept.push_back(scaled(*part, width, i * int64_t{s.inner} * width));
  return kept;
}

}  // namespace

Mamba::Mamba(const Weights& w, const MambaSpec& s, int hidden)
    : Mamba(w, s, hidden, even_part(w.context().ranks, s.inner)) {}

Mamba::Mamba(const Weights& w, const MambaSpec& s, int hidden, const std::optional<RowRange>& part)
    : spec_(s),
      in_(w, {{"in_proj", 2 * int64_t{s.inner}}}, hidden, s.bias, {.outputs = channels(s, part, 2)}),
      x_(w, {{"x_proj", s.dt_rank + 2 * int64_t{s.state}}}, s.inner, false, {.inputs = part}),
      dt_(w, {{"dt_proj", s.inner}}, s.dt_rank, true, {.outputs = channels(s, part, 1)}),
      out_(w, {{"out_proj", hidden}}, s.inner, s.bias, {.inputs = part}),
      conv_(w, "conv1d", s.conv(), channels(s, part, 1)) {
  if (part) spec_.inner = static_cast<int>(part->count);
  std::vector<float> rates = picked(w.vector("A_log", Shape{s.inner, s.state}), channels(s, part, 1, s.state));
  a_ = Vector(w.context(), transposed(decay_rates(std::move(rates)), spec_.inner));
  d_ = Vector(w.context(), picked(w.vector("D", s.inner), channels(s, part, 1)));
  if (!s.norms) return;
  dt_norm_ = Norm(w, "dt_layernorm", s.dt_rank, s.norm);
  b_norm_ = Norm(w, "b_layernorm", s.state, s.norm);
  c_norm_ = Norm(w, "c_layernorm", s.state, s.norm);
}

void Mamba::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                       bool accumulate) const {
  const int64_t inner = spec_.inner, n = spec_.state, conv_values = spec_.conv().state_values();
  const Tensor xz = in_(c, x);
  const Tensor u = conv_(c, step, xz.slice_columns(0, inner), step.state.slice_columns(0, conv_values));
  const Tensor parameters = x_(c, u);
  const Tensor rank = parameters.slice_columns(0, spec_.dt_rank);
  const Tensor b = parameters.slice_columns(spec_.dt_rank, n), read = parameters.slice_columns(spec_.dt_rank + n, n);
  if (spec_.norms) {
    dt_norm_.in_place(c, rank);
    b_norm_.in_place(c, b);
    c_norm_.in_place(c, read);
  }
  const Tensor dt = dt_(c, rank);
  ops::softplus(c, dt, nullptr, 0.0f, std::numeric_limits<float>::infinity());
  ops::selective_scan(c, {.out = u,
                          .x = u,
                          .dt = dt,
                          .b = b,
                          .c = read,
                          .a = a_.data(),
                          .d = d_.data(),
                          .state = step.state.slice_columns(conv_values, inner * n),
                          .sequences = step.sequences()});
  ops::multiply(c, u, xz.slice_columns(inner, inner), ops::Activation::kSilu);
  out_.into(c, out, u, accumulate);
}

}  // namespace sluice
