// LFM2's gated short convolution: out_proj(c * conv(b * x)), where b, c, x are three projections of the input (Liquid
// AI 2025, arXiv:2511.23404).
#pragma once

#include <optional>

#include "nn/recurrent/causal_conv.h"

namespace sluice {

class ShortConv final : public TokenMixer {
 public:
  ShortConv(const Weights& w, int width, bool bias, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override { return 4 * spec_.channels; }
  int64_t state_values() const override { return spec_.state_values(); }

 private:
  ShortConv(const Weights& w, const CausalConvSpec& spec, bool bias, const std::optional<RowRange>& part);

  CausalConvSpec spec_;  // of this rank's channels
  Linear in_, out_;
  CausalConv conv_;
};

}  // namespace sluice
