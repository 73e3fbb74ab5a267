// Kimi's delta attention (Kimi Linear, arXiv:2510.26692): a gated delta net whose states decay per key channel. The
// decays and the output gate are projected in two narrow steps.
#pragma once

#include "nn/recurrent/delta_rule.h"

namespace sluice {

// Tensors: q_proj, k_proj, v_proj, q_conv1d, k_conv1d, v_conv1d; f_a_proj, f_b_proj, dt_bias, A_log for the decays;
// b_proj; g_a_proj, g_b_proj for the gate; o_norm, o_proj.
class KimiDelta final : public TokenMixer {
 public:
  // Keys must have as many heads as values, of the same width.
  KimiDelta(const Weights& w, const DeltaSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override {
    return 2 * spec_.conv().channels + 2 * spec_.values() + spec_.heads + 2 * int64_t{spec_.value_dim};
  }
  int64_t state_values() const override { return spec_.state_values(); }

 private:
  KimiDelta(const Weights& w, const DeltaSpec& spec, int hidden, const std::optional<DeltaPart>& part);

  DeltaSpec spec_;                   // of this rank's heads
  Linear in_, decays_, gate_, out_;  // outputs of in_: queries, keys, values, first steps of decays and gate, beta
  DeltaRule rule_;
};

}  // namespace sluice
