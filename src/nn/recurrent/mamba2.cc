// Mamba 2: projections, convolution, scan, gate and norm.
#include "nn/recurrent/mamba2.h"

namespace sluice {

Mamba2::Mamba2(const Weights& w, const Mamba2Spec& s, int hidden)
    : spec_(s),
      in_(w, {{"in_proj", s.inner() + s.conv().channels + s.heads}}, hidden, s.in_bias),
      out_(w, {{"out_proj", hidden}}, s.inner(), s.out_bias),
      conv_(w, "conv1d", s.conv()),
      a_(w.context(), decay_rates(w.vector("A_log", s.heads))),
      d_(w.context(), w.vector("D", s.heads)),
      dt_bias_(w.context(), w.vector("dt_bias", s.heads)) {
  if (!s.norm) return;
  const NormSpec norm{.eps = s.norm_eps};
  const std::vector<float> weight = (w / "norm").vector("weight", s.inner());
  const int64_t columns = s.inner() / s.norm_groups;
  for (auto at = weight.begin(); at != weight.end(); at += columns) {
    norms_.emplace_back(w.context(), std::span(at, at + columns), norm);
  }
}

void Mamba2::scale(ops::Ctx& c, const Tensor& projected) const {
  const int64_t inner = spec_.inner(), shared = spec_.projections();
  const std::array<int64_t, 5> widths{inner, inner, shared, shared, spec_.heads};
  int64_t begin = 0;
  for (size_t i = 0; i < widths.size(); begin += widths[i++]) {
    if (spec_.scales[i] == 1.0f) continue;
    ops::map(c, projected.slice_columns(begin, widths[i]), ops::Map::kScale, spec_.scales[i]);
  }
}

void Mamba2::gate_and_norm(ops::Ctx& c, const Tensor& y, const Tensor& gate) const {
  const auto norm = [&] {
    const int64_t columns = spec_.inner() / spec_.norm_groups;
    for (size_t i = 0; i < norms_.size(); ++i) {
      norms_[i].in_place(c, y.slice_columns(static_cast<int64_t>(i) * columns, columns));
    }
  };
  if (spec_.norm_before_gate) norm();
  ops::multiply(c, y, gate, ops::Activation::kSilu);
  if (!spec_.norm_before_gate) norm();
}

void Mamba2::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                        bool accumulate) const {
  const int64_t inner = spec_.inner(), shared = spec_.projections(), conv_values = spec_.conv().state_values();
  const Tensor projected = in_(c, x);
  scale(c, projected);
  const Tensor gate = projected.slice_columns(0, inner), xbc = projected.slice_columns(inner, inner + 2 * shared);
  const Tensor dt = projected.slice_columns(2 * inner + 2 * shared, spec_.heads);
  const Tensor mixed = conv_(c, step, xbc, step.state.slice_columns(0, conv_values));
  const Tensor y = mixed.slice_columns(0, inner);
  ops::softplus(c, dt, dt_bias_.data(), spec_.dt_low, spec_.dt_high);
  ops::head_scan(c, {.out = y,
                     .x = y,
                     .dt = dt,
                     .b = mixed.slice_columns(inner, shared),
                     .c = mixed.slice_columns(inner + shared, shared),
                     .a = a_.data(),
                     .d = d_.data(),
                     .heads = spec_.heads,
                     .groups = spec_.groups,
                     .state = step.state.slice_columns(conv_values, inner * spec_.state),
                     .sequences = step.sequences()});
  gate_and_norm(c, y, gate);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
