// Projections, convolutions, delta rule, norm and gate.
#include "nn/kimi_delta.h"

#include <cmath>
#include <limits>

#include "nn/delta_net.h"

namespace sluice {

KimiDelta::KimiDelta(const Weights& w, const KimiDeltaSpec& s, int hidden)
    : spec_(s),
      in_(w,
          {{"q_proj", s.width()},
           {"k_proj", s.width()},
           {"v_proj", s.width()},
           {"f_a_proj", s.dim},
           {"g_a_proj", s.dim},
           {"b_proj", s.heads}},
          hidden, false),
      decays_(w, {{"f_b_proj", s.width()}}, s.dim, false),
      gate_(w, {{"g_b_proj", s.width()}}, s.dim, false),
      out_(w, {{"o_proj", hidden}}, s.width(), false),
      conv_(w, {{"q_conv1d", s.width()}, {"k_conv1d", s.width()}, {"v_conv1d", s.width()}}, s.conv()),
      q_norm_(unit_length(w.context(), s.dim, 1.0f / std::sqrt(static_cast<float>(s.dim)))),
      k_norm_(unit_length(w.context(), s.dim, 1.0f)),
      norm_(w, "o_norm", s.dim, {.eps = s.norm_eps}),
      a_(w.context(), decay_rates(w.vector("A_log", Shape{1, 1, s.heads, 1}))),
      dt_bias_(w.context(), w.vector("dt_bias", s.width())) {}

void KimiDelta::operator()(ops::Ctx& c, const MixerStep& step, const Tensor& out, const Tensor& x,
                           bool accumulate) const {
  const int64_t width = spec_.width(), conv_values = spec_.conv().state_values();
  const Tensor projected = in_(c, x);
  const Tensor mixed = conv_(c, step, projected.slice_columns(0, 3 * width), step.state.slice_columns(0, conv_values));
  const Tensor q = mixed.slice_columns(0, width), k = mixed.slice_columns(width, width);
  const Tensor y = mixed.slice_columns(2 * width, width);
  const Tensor beta = projected.slice_columns(3 * width + 2 * spec_.dim, spec_.heads);
  const Tensor dt = decays_(c, projected.slice_columns(3 * width, spec_.dim));
  const Tensor gate = gate_(c, projected.slice_columns(3 * width + spec_.dim, spec_.dim));
  q_norm_.in_place(c, by_heads(q, spec_.heads));
  k_norm_.in_place(c, by_heads(k, spec_.heads));
  ops::unary(c, beta, ops::Activation::kSigmoid);
  ops::softplus(c, dt, dt_bias_.data(), 0.0f, std::numeric_limits<float>::infinity());
  ops::delta_rule(c, {.out = y,
                      .q = q,
                      .k = k,
                      .v = y,
                      .dt = dt,
                      .beta = beta,
                      .a = a_.data(),
                      .heads = spec_.heads,
                      .key_heads = spec_.heads,
                      .state = step.state.slice_columns(conv_values, width * spec_.dim),
                      .sequences = step.sequences()});
  norm_.in_place(c, by_heads(y, spec_.heads));
  ops::multiply(c, y, gate, ops::Activation::kSigmoid);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
