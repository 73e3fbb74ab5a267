// Griffin's recurrent block: a short convolution, then a real-gated linear recurrent unit, multiplied by a gate branch
// (De et al. 2024, arXiv:2402.19427).
#pragma once

#include <optional>

#include "nn/recurrent/causal_conv.h"
#include "nn/stacked_linear.h"

namespace sluice {

struct GriffinSpec {
  int width = 0;
  int heads = 0;  // the unit's gates see only the channels of their own head
  int conv_width = 4;
  ops::Activation activation = ops::Activation::kGeluTanh;  // activation of the gate branch

  CausalConvSpec conv() const { return {width, conv_width, true, ops::Activation::kIdentity}; }
};

class Griffin final : public TokenMixer {
 public:
  Griffin(const Weights& w, const GriffinSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override { return 5 * int64_t{spec_.width}; }
  int64_t state_values() const override { return spec_.conv().state_values() + spec_.width; }

 private:
  Griffin(const Weights& w, const GriffinSpec& spec, int hidden, const std::optional<RowRange>& heads);

  GriffinSpec spec_;  // of this rank's heads
  Linear in_, out_;   // outputs of in_: x, gate
  CausalConv conv_;
  StackedLinear input_gate_, recurrent_gate_;
  Vector input_bias_, recurrent_bias_, rate_;  // [width]
};

}  // namespace sluice
