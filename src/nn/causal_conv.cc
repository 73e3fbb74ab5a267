// Loading and running of the convolution.
#include "nn/causal_conv.h"

namespace sluice {

CausalConv::CausalConv(const Weights& w, const std::string& name, const CausalConvSpec& s) : spec_(s) {
  const Weights here = w / name;
  weight_ = Vector(w.context(), transposed(here.vector("weight", Shape{s.channels, 1, s.width}), s.channels));
  if (s.bias) {
    bias_ = Vector(w.context(), here.vector("bias", s.channels));
  } else if (here.has("bias")) {
    w.context().problems.push_back("tensor '" + here.prefix() +
                                   "bias' exists, but the configuration has no bias there");
  }
}

Tensor CausalConv::operator()(ops::Ctx& c, const MixerStep& step, const Tensor& x, const Tensor& state) const {
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
