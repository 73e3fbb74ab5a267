// Kimi's delta attention: its one-step and two-step projections around the delta rule.
#include "nn/recurrent/kimi_delta.h"

namespace sluice {

namespace {

// The outputs of the input projection that belong to the part, and all of the narrow first steps.
Linear::Split in_split(const DeltaSpec& s, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  std::vector<RowRange> kept = delta_columns(s, part);
  const int64_t narrow = 2 * s.keys() + s.values(), beta = narrow + 2 * int64_t{s.value_dim};
  kept.push_back({narrow, 2 * int64_t{s.value_dim}});
  kept.push_back(scaled(part->heads, 1, beta));
  return {.outputs = std::move(kept)};
}

Linear::Split heads_split(int64_t width, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  return {.outputs = {scaled(part->heads, width)}};
}

Linear::Split out_split(int64_t width, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  return {.inputs = scaled(part->heads, width)};
}

}  // namespace

KimiDelta::KimiDelta(const Weights& w, const DeltaSpec& s, int hidden)
    : KimiDelta(w, s, hidden, delta_part(w.context().ranks, s)) {}

KimiDelta::KimiDelta(const Weights& w, const DeltaSpec& s, int hidden, const std::optional<DeltaPart>& part)
    : spec_(s),
      in_(w,
          {{"q_proj", s.keys()},
           {"k_proj", s.keys()},
           {"v_proj", s.values()},
           {"f_a_proj", s.value_dim},
           {"g_a_proj", s.value_dim},
           {"b_proj", s.heads}},
          hidden, false, in_split(s, part)),
      decays_(w, {{"f_b_proj", s.keys()}}, s.value_dim, false, heads_split(s.key_dim, part)),
      gate_(w, {{"g_b_proj", s.values()}}, s.value_dim, false, heads_split(s.value_dim, part)),
      out_(w, {{"o_proj", hidden}}, s.values(), false, out_split(s.value_dim, part)),
      rule_(w, s, part, {{"q_conv1d", s.keys()}, {"k_conv1d", s.keys()}, {"v_conv1d", s.values()}}, "o_norm",
            w.vector("A_log", Shape{1, 1, s.heads, 1}), w.vector("dt_bias", s.keys())) {
  spec_.keep(part);
}

void KimiDelta::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                           bool accumulate) const {
  const int64_t qkv = 2 * spec_.keys() + spec_.values(), narrow = spec_.value_dim;
  const Tensor projected = in_(c, x);
  const Tensor y = rule_(c, step,
                         {.qkv = projected.slice_columns(0, qkv),
                          .dt = decays_(c, projected.slice_columns(qkv, narrow)),
                          .beta = projected.slice_columns(qkv + 2 * narrow, spec_.heads),
                          .gate = gate_(c, projected.slice_columns(qkv + narrow, narrow)),
                          .gate_activation = ops::Activation::kSigmoid});
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
