// The short convolution over time in front of most recurrences, with its last inputs as its state.
#pragma once

#include <string>

#include "nn/layers.h"
#include "nn/token_mixer.h"

namespace sluice {

struct CausalConvSpec {
  int64_t channels = 0;
  int width = 4;  // tokens that an output sees, 1 .. ops::kMaxConvWidth
  bool bias = true;
  ops::Activation activation = ops::Activation::kSilu;

  int64_t state_values() const { return (width - 1) * channels; }
};

class CausalConv {
 public:
  // Tensors NAME.weight [channels, 1, width] and NAME.bias [channels].
  CausalConv(const Weights& w, const std::string& name, const CausalConvSpec& spec)
      : CausalConv(w, {{name, spec.channels}}, spec) {}
  // The same of several tensors, whose channels lie one after the other.
  struct Part {
    std::string name;
    int64_t channels = 0;
  };
  CausalConv(const Weights& w, const std::vector<Part>& parts, const CausalConvSpec& spec);
  // New [tokens, channels] from the arena; `state` are the convolution's columns of the step's.
  Tensor operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& state) const;

 private:
  CausalConvSpec spec_;
  Vector weight_, bias_;  // [width, channels], [channels]
};

}  // namespace sluice
