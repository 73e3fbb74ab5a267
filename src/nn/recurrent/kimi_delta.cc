// Kimi's delta attention: its one-step and two-step projections around the delta rule.
#include "nn/recurrent/kimi_delta.h"

namespace sluice {

KimiDelta::KimiDelta(const Weights& w, const DeltaSpec& s, int hidden)
    : spec_(s),
      in_(w,
          {{"q_proj", s.keys()},
           {"k_proj", s.keys()},
           {"v_proj", s.values()},
           {"f_a_proj", s.value_dim},
           {"g_a_proj", s.value_dim},
           {"b_proj", s.heads}},
          hidden, false),
      decays_(w, {{"f_b_proj", s.keys()}}, s.value_dim, false),
      gate_(w, {{"g_b_proj", s.values()}}, s.value_dim, false),
      out_(w, {{"o_proj", hidden}}, s.values(), false),
      rule_(w, s, {{"q_conv1d", s.keys()}, {"k_conv1d", s.keys()}, {"v_conv1d", s.values()}}, "o_norm",
            w.vector("A_log", Shape{1, 1, s.heads, 1}), w.vector("dt_bias", s.keys())) {}

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
