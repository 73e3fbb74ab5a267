// LFM2's gated short convolution: projections, gate, convolution, gate.
#include "nn/recurrent/short_conv.h"

namespace sluice {

ShortConv::ShortConv(const Weights& w, int width, bool bias, int hidden)
    : spec_{.channels = hidden, .width = width, .bias = bias, .activation = ops::Activation::kIdentity},
      in_(w, {{"in_proj", 3 * int64_t{hidden}}}, hidden, bias),
      out_(w, {{"out_proj", hidden}}, hidden, bias),
      conv_(w, "conv", spec_) {}

void ShortConv::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                           bool accumulate) const {
  const int64_t n = spec_.channels;
  const Tensor projected = in_(c, x), input = projected.slice_columns(2 * n, n);
  ops::multiply(c, input, projected.slice_columns(0, n));
  const Tensor mixed = conv_(c, step, input, step.state);
  ops::multiply(c, mixed, projected.slice_columns(n, n));
  out_.into(c, out, mixed, accumulate);
}

}  // namespace sluice
