// The feed-forward half of a block: gated (act(gate(x)) * up(x), Shazeer 2020, arXiv:2002.05202) or plain.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/layers.h"

namespace sluice {

struct MlpSpec {
  int inner = 0;
  bool gated = true;
  bool bias = false;        // of both projections
  bool transposed = false;  // weights are [inputs, outputs]
  ops::Activation activation = ops::Activation::kSilu;
  bool xielu = false;                  // instead: learned per layer (tensors act_fn.*)
  float gate_scale = 1.0f;             // of the gate, before its activation
  std::optional<float> gate_cutoff{};  // ops::gaussian_top_k of the gate, before its activation
  bool sub_norm = false;               // norm before the output projection (tensor "ffn_sub_norm")
  NormSpec sub_norm_spec{};

  // Tensors. Gated: {"gate_proj", "up_proj"}, or one name of both, gate first. Plain: one name.
  std::vector<std::string> in{"gate_proj", "up_proj"};
  std::string out = "down_proj";
};

class Mlp {
 public:
  Mlp() = default;
  Mlp(const Weights& w, const MlpSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;  // out = or += mlp(x)
  DType input_type(const ops::Ctx& c, int64_t rows) const { return in_.input_type(c, rows); }
  static int64_t floats_per_token(const MlpSpec& spec);  // of the arena

 private:
  MlpSpec spec_;
  Linear in_, out_;
  Norm sub_norm_;
  ops::Xielu xielu_;
};

}  // namespace sluice
