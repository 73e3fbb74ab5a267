// LFM2's gated short convolution: projections, gate, convolution, gate.
#include "nn/recurrent/short_conv.h"

namespace sluice {

namespace {

// A rank's channels, as ranges of a tensor that has all channels `copies` times. Empty: all.
std::vector<RowRange> kept(const std::optional<RowRange>& part, int64_t channels, int copies) {
  std::vector<RowRange> ranges;
  for (int i = 0; part && i < copies; ++i) ranges.push_back(scaled(*part, 1, i * channels));
  return ranges;
}

}  // namespace

ShortConv::ShortConv(const Weights& w, int width, bool bias, int hidden)
    : ShortConv(w, {.channels = hidden, .width = width, .bias = bias, .activation = ops::Activation::kIdentity}, bias,
                even_part(w.context().ranks, hidden)) {}

ShortConv::ShortConv(const Weights& w, const CausalConvSpec& s, bool bias, const std::optional<RowRange>& part)
    : spec_(s),
      in_(w, {{"in_proj", 3 * s.channels}}, s.channels, bias, {.outputs = kept(part, s.channels, 3)}),
      out_(w, {{"out_proj", s.channels}}, s.channels, bias, {.inputs = part}),
      conv_(w, "conv", s, kept(part, s.channels, 1)) {
  if (part) spec_.channels = part->count;
}

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
