// Mamba: a selective scan after a short convolution, gated (Gu and Dao 2023, arXiv:2312.00752).
#pragma once

#include <optional>

#include "nn/recurrent/causal_conv.h"

namespace sluice {

struct MambaSpec {
  int inner = 0;    // channels
  int state = 0;    // values per channel
  int dt_rank = 0;  // rank of the step-size projection
  int conv_width = 4;
  bool conv_bias = true;
  bool bias = false;                                    // the input and output projections have a bias
  ops::Activation activation = ops::Activation::kSilu;  // activation after the convolution; the gate uses SiLU
  // Norms the step sizes and both state projections (tensors dt_layernorm, b_layernorm, c_layernorm).
  bool norms = false;
  NormSpec norm{};

  CausalConvSpec conv() const { return {inner, conv_width, conv_bias, activation}; }
};

class Mamba final : public TokenMixer {
 public:
  Mamba(const Weights& w, const MambaSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override { return 4 * int64_t{spec_.inner} + spec_.dt_rank + 2 * spec_.state; }
  int64_t state_values() const override { return spec_.conv().state_values() + int64_t{spec_.inner} * spec_.state; }

 private:
  Mamba(const Weights& w, const MambaSpec& spec, int hidden, const std::optional<RowRange>& part);

  MambaSpec spec_;  // of this rank's channels
  Linear in_, x_, dt_, out_;
  CausalConv conv_;
  Norm dt_norm_, b_norm_, c_norm_;
  Vector a_, d_;  // [state, inner], [inner]
};

}  // namespace sluice
