// Kimi's delta attention (Kimi Linear, arXiv:2510.26692): a gated delta net whose states decay by the channel of the
// keys. Decays and the gate of the result are projected in two narrow steps.
#pragma once

#include "nn/causal_conv.h"

namespace sluice {

struct KimiDeltaSpec {
  int heads = 0;
  int dim = 0;  // of a head's queries, keys and values
  int conv_width = 4;
  ops::Activation activation = ops::Activation::kSilu;  // of the convolutions
  float norm_eps = 1e-5f;

  int64_t width() const { return int64_t{heads} * dim; }
  CausalConvSpec conv() const { return {3 * width(), conv_width, false, activation}; }
};

// Tensors q_proj, k_proj, v_proj, q_conv1d, k_conv1d, v_conv1d; f_a_proj, f_b_proj, dt_bias, A_log of the decays;
// b_proj; g_a_proj, g_b_proj of the gate; o_norm, o_proj.
class KimiDelta final : public Mixer {
 public:
  KimiDelta(const Weights& w, const KimiDeltaSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const MixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override {
    return 2 * spec_.conv().channels + 2 * spec_.width() + spec_.heads + 2 * int64_t{spec_.dim};
  }
  int64_t state_values() const override { return spec_.conv().state_values() + spec_.width() * spec_.dim; }

 private:
  KimiDeltaSpec spec_;
  Linear in_, decays_, gate_, out_;  // in: queries, keys, values, first steps of decays and gate, beta
  CausalConv conv_;
  Norm q_norm_, k_norm_, norm_;
  Vector a_, dt_bias_;  // [heads], [heads * dim]
};

}  // namespace sluice
