// Mamba 2: a scan with one decay per head after a short convolution, gated and normed (Dao and Gu 2024,
// arXiv:2405.21060).
#pragma once

#include <array>
#include <limits>
#include <optional>

#include "nn/recurrent/causal_conv.h"

namespace sluice {

struct Mamba2Spec {
  int heads = 0;
  int head_dim = 0;
  int groups = 1;  // groups of heads that share the state projections
  int state = 0;   // values per channel
  int conv_width = 4;
  bool conv_bias = true;
  bool in_bias = false, out_bias = false;  // the input and output projections have a bias
  // Scales of the input projection's outputs: gate, x, b, c, dt (Falcon-H1).
  std::array<float, 5> scales{1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  ops::Activation activation = ops::Activation::kSilu;                    // activation after the convolution
  float dt_low = 0.0f, dt_high = std::numeric_limits<float>::infinity();  // limits of the step sizes
  bool norm = true;                                                       // norms the result (tensor "norm")
  bool norm_before_gate = false;
  int norm_groups = 1;  // number of column groups that are normed separately
  float norm_eps = 1e-5f;

  int64_t inner() const { return int64_t{heads} * head_dim; }
  int64_t projections() const { return int64_t{groups} * state; }
  CausalConvSpec conv() const { return {inner() + 2 * projections(), conv_width, conv_bias, activation}; }
};

class Mamba2 final : public TokenMixer {
 public:
  Mamba2(const Weights& w, const Mamba2Spec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override { return spec_.inner() + 2 * spec_.conv().channels + spec_.heads; }
  int64_t state_values() const override { return spec_.conv().state_values() + spec_.inner() * spec_.state; }

 private:
  void scale(ops::Ctx& c, const Tensor& projected) const;
  void gate_and_norm(ops::Ctx& c, const Tensor& y, const Tensor& gate) const;

  struct Part {
    RowRange heads, groups;
  };
  // This rank's heads and their groups; nullopt: all.
  static std::optional<Part> part_of(const Ranks& ranks, const Mamba2Spec& spec);
  Mamba2(const Weights& w, const Mamba2Spec& spec, int hidden, const std::optional<Part>& part);
  void load_norms(const Weights& w, const Mamba2Spec& whole, const std::optional<Part>& part);

  Mamba2Spec spec_;     // of this rank's heads
  int64_t normed_ = 0;  // columns that the norms see: this rank's, or those of all ranks
  Linear in_, out_;
  CausalConv conv_;
  std::vector<Norm> norms_;  // one per group
  Vector a_, d_, dt_bias_;   // [heads]
};

}  // namespace sluice
