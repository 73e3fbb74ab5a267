// Loads and runs the causal convolution.
#include "nn/recurrent/causal_conv.h"

#include <algorithm>
#include <iterator>

namespace sluice {

CausalConv::CausalConv(const Weights& w, const std::vector<Part>& parts, const CausalConvSpec& s,
                       const std::vector<RowRange>& kept)
    : spec_(s) {
  std::vector<float> weight, bias;
  for (const Part& part : parts) {
    const Weights here = w / part.name;
    std::ranges::copy(here.vector("weight", Shape{part.channels, 1, s.width}), std::back_inserter(weight));
    if (s.bias) {
      std::ranges::copy(here.vector("bias", part.channels), std::back_inserter(bias));
    } else if (here.has("bias")) {
      w.context().add_problem("tensor '" + here.prefix() + "bias' exists, but the configuration has no bias there");
    }
  }
  std::vector<RowRange> elements;
  if (!kept.empty()) spec_.channels = 0;
  for (const RowRange& range : kept) {
    spec_.channels += range.count;
    elements.push_back(scaled(range, s.width));
  }
  weight_ = Vector(w.context(), transposed(picked(std::move(weight), elements), spec_.channels));
  bias_ = Vector(w.context(), picked(std::move(bias), kept));
}

Tensor CausalConv::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& state) const {
  const Tensor out = c.arena.take(&kFloat32, x.shape);
  ops::causal_conv(c, {.out = out,
                       .x = x,
                       .state = state,
                       .width = spec_.width,
                       .weight = weight_.data(),
                       .bias = bias_.data(),
                       .activation = spec_.activation,
                       .sequences = step.sequences()});
  return out;
}

}  // namespace sluice
