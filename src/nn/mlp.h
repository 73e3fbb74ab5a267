// The feed-forward sublayer of a block: gated (act(gate(x)) * up(x), Shazeer 2020, arXiv:2002.05202) or plain.
// gate_scale, gate_cutoff, clamp, glu_alpha and glu_limit, and sub_norm serve one family each; they act between the two
// projections, so a family that kept them would have to copy the layer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/layers.h"

namespace sluice {

struct MlpSpec {
  int inner = 0;
  bool gated = true;
  bool bias = false;        // both projections have a bias
  bool out_bias = false;    // the output projection has a bias, even if `bias` is false
  bool transposed = false;  // weights are [inputs, outputs]
  ops::Activation activation = ops::Activation::kSilu;
  float gate_scale = 1.0f;                   // multiplies the gate before its activation
  std::optional<float> gate_cutoff{};        // applies ops::gaussian_top_k to the gate before its activation
  float clamp = 0.0f;                        // > 0: see clamped_product
  bool clamp_first = false;                  // clamps the gate before its activation instead of after it
  float glu_alpha = 0.0f, glu_limit = 0.0f;  // limit > 0: uses ops::clamped_glu
  bool sub_norm = false;                     // norms the input of the output projection (tensor "ffn_sub_norm")
  NormSpec sub_norm_spec{};

  // Tensor names. Gated: {"gate_proj", "up_proj"}, or one fused tensor with the gate first. Plain: one name.
  std::vector<std::string> in{"gate_proj", "up_proj"};
  std::string out = "down_proj";
};

// out = clamp(activation(gate)) * clamp(up), where clamp(x) = min(max(x, -limit), limit). With `clamp_first` it is
// activation(min(gate, limit)) * clamp(up), for SiLU and limits above 1. Overwrites gate_up, which is [tokens, 2n],
// gate columns first.
void clamped_product(ops::Ctx& c, const Tensor& out, const Tensor& gate_up, ops::Activation activation, float limit,
                     bool clamp_first);

class Mlp {
 public:
  Mlp() = default;
  // `sum`: false if the caller adds up the ranks' results; see partial().
  Mlp(const Weights& w, const MlpSpec& spec, int hidden, bool sum = true);
  // out = or += mlp(x), then `next`
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate,
                  const NextNorm* next = nullptr) const;
  DType input_type(const ops::Ctx& c, int64_t rows) const { return in_.input_type(c, rows); }
  static int64_t floats_per_token(const MlpSpec& spec);  // arena floats
  bool partial() const { return out_.partial(); }        // results are this rank's summands

 private:
  Mlp(const Weights& w, const MlpSpec& spec, int hidden, bool sum, std::optional<RowRange> part);

  MlpSpec spec_;       // `inner` is this rank's
  int64_t whole_ = 0;  // inner width of all ranks together
  Linear in_, out_;
  Norm sub_norm_;
};

}  // namespace sluice
