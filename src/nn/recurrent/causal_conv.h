// The short causal convolution over time before most recurrences. Its state is its last width - 1 inputs.
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
  CausalConv(const Weights& w, const std::string& name, const CausalConvSpec& spec,
             const std::vector<RowRange>& kept = {})
      : CausalConv(w, {{name, spec.channels}}, spec, kept) {}
  // The same for several tensors whose channels are concatenated. Only the channels in `kept` are those of this rank;
  // empty: all.
  struct Part {
    std::string name;
    int64_t channels = 0;
  };
  CausalConv(const Weights& w, const std::vector<Part>& parts, const CausalConvSpec& spec,
             const std::vector<RowRange>& kept = {});
  // Returns new [tokens, channels] from the arena. `state` is the convolution's columns of the step's state.
  Tensor operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& state) const;

 private:
  CausalConvSpec spec_;
  Vector weight_, bias_;  // [width, channels], [channels]
};

}  // namespace sluice
