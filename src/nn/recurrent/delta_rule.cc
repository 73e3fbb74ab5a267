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

std::optional<DeltaPart> delta_part(const Ranks& ranks, const DeltaSpec& spec) {
  const std::optional<RowRange> heads = even_part(ranks, spec.heads), keys = even_part(ranks, spec.key_heads);
  if (!heads || !keys) return std::nullopt;
  return DeltaPart{*heads, *keys};
}

std::vector<RowRange> delta_columns(const DeltaSpec& s, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  return {scaled(part->key_heads, s.key_dim), scaled(part->key_heads, s.key_dim, s.keys()),
          scaled(part->heads, s.value_dim, 2 * s.keys())};
}

void DeltaSpec::keep(const std::optional<DeltaPart>& part) {
  if (!part) return;
  heads = static_cast<int>(part->heads.count);
  key_heads = static_cast<int>(part->key_heads.count);
}

namespace {

// The numbers that belong to the heads of a part, of which there are equally many per head.
std::vector<float> of_heads(std::vector<float> values, int heads, const std::optional<DeltaPart>& part) {
  if (!part) return values;
  const auto per_head = static_cast<int64_t>(values.size()) / heads;
  return picked(std::move(values), {scaled(part->heads, per_head)});
}

}  // namespace

DeltaRule::DeltaRule(const Weights& w, const DeltaSpec& s, const std::optional<DeltaPart>& part,
                     const std::vector<CausalConv::Part>& conv, const char* norm, std::vector<float> a_log,
                     std::vector<float> dt_bias)
    : spec_(s),
      conv_(w, conv, s.conv(), delta_columns(s, part)),
      q_norm_(unit_length(w.context(), s.key_dim, 1.0f / std::sqrt(static_cast<float>(s.key_dim)))),
      k_norm_(unit_length(w.context(), s.key_dim, 1.0f)),
      norm_(w, norm, s.value_dim, {.eps = s.norm_eps}),
      a_(w.context(), decay_rates(of_heads(std::move(a_log), s.heads, part))),
      dt_bias_(w.context(), of_heads(std::move(dt_bias), s.heads, part)) {
  spec_.keep(part);
}

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
