// The delta rule: convolution, recurrence, norm and gate.
#include "nn/recurrent/delta_rule.h"

#include <cmath>
#include <limits>

namespace sluice {
namespace {

// x / sqrt(sum of squares + 1e-6) * scale, expressed as an RMSNorm.
Norm unit_length(const LoadContext& context, int dim, float scale) {
  const auto n = static_cast<float>(dim);
  return Norm(context, std::vector<float>(static_cast<size_t>(dim), scale / std::sqrt(n)), {.eps = 1e-6f / n});
}

}  // namespace

DeltaRule::DeltaRule(const Weights& w, const DeltaSpec& s, const std::vector<CausalConv::Part>& conv, const char* norm,
                     std::vector<float> a_log, const std::vector<float>& dt_bias)
    : spec_(s),
      conv_(w, conv, s.conv()),
      q_norm_(unit_length(w.context(), s.key_dim, 1.0f / std::sqrt(static_cast<float>(s.key_dim)))),
      k_norm_(unit_length(w.context(), s.key_dim, 1.0f)),
      norm_(w, norm, s.value_dim, {.eps = s.norm_eps}),
      a_(w.context(), decay_rates(std::move(a_log))),
      dt_bias_(w.context(), dt_bias) {}

Tensor DeltaRule::operator()(ops::Ctx& c, const TokenMixerStep& step, const Inputs& in) const {
  const int64_t keys = spec_.keys(), values = spec_.values(), conv_values = spec_.conv().state_values();
  const Tensor mixed = conv_(c, step, in.qkv, step.state.slice_columns(0, conv_values));
  const Tensor q = mixed.slice_columns(0, keys), k = mixed.slice_columns(keys, keys);
  const Tensor y = mixed.slice_columns(2 * keys, values);
  q_norm_.in_place(c, by_heads(q, spec_.key_heads));
  k_norm_.in_place(c, by_heads(k, spec_.key_heads));
  ops::unary(c, in.beta, ops::Activation::kSigmoid);
  if (spec_.beta_scale != 1.0f) ops::map(c, in.beta, ops::Map::kScale, spec_.beta_scale);
  ops::softplus(c, in.dt, dt_bias_.data(), 0.0f, std::numeric_limits<float>::infinity());
  ops::delta_rule(c, {.out = y,
                      .q = q,
                      .k = k,
                      .v = y,
                      .dt = in.dt,
                      .beta = in.beta,
                      .a = a_.data(),
                      .heads = spec_.heads,
                      .key_heads = spec_.key_heads,
                      .state = step.state.slice_columns(conv_values, values * spec_.key_dim),
                      .sequences = step.sequences()});
  norm_.in_place(c, by_heads(y, spec_.heads));
  ops::multiply(c, y, in.gate, in.gate_activation);
  return y;
}

}  // namespace sluice
