// The MLP on the op table.
#include "nn/mlp.h"

#include <cmath>

namespace sluice {
namespace {

std::vector<Linear::Part> in_parts(const MlpSpec& s) {
  const int64_t width = (s.gated ? 2 : 1) * int64_t{s.inner} / static_cast<int64_t>(s.in.size());
  std::vector<Linear::Part> parts;
  for (const std::string& name : s.in) parts.push_back({name, width, {}, s.transposed});
  return parts;
}

// Returns the value of a tensor of shape [1] or [].
float scalar(const Weights& w, const char* name, const Shape& shape) {
  const std::vector<float> values = w.vector(name, shape);
  return values.empty() ? 0.0f : values[0];
}

float softplus(float x) { return static_cast<float>(x > 20 ? x : std::log1p(std::exp(double{x}))); }

ops::Xielu read_xielu(const Weights& w) {
  ops::Xielu x;
  x.beta = scalar(w, "beta", {});
  x.eps = scalar(w, "eps", {});
  x.alpha_p = softplus(scalar(w, "alpha_p", {1}));
  x.alpha_n = x.beta + softplus(scalar(w, "alpha_n", {1}));
  return x;
}

}  // namespace

Mlp::Mlp(const Weights& w, const MlpSpec& s, int hidden)
    : spec_(s), in_(w, in_parts(s), hidden, s.bias), out_(w, {{s.out, hidden, {}, s.transposed}}, s.inner, s.bias) {
  if (s.sub_norm) sub_norm_ = Norm(w, "ffn_sub_norm", s.inner, s.sub_norm_spec);
  if (s.xielu) xielu_ = read_xielu(w / "act_fn");
}

int64_t Mlp::floats_per_token(const MlpSpec& s) { return (s.gated ? 3 : 1) * int64_t{s.inner}; }

void Mlp::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  if (spec_.gated && spec_.gate_scale == 1.0f && !spec_.gate_cutoff && !spec_.sub_norm) {
    const Tensor gate_up = ops::take_rows(c, in_.output_type(c, x.rows()), x.rows(), 2 * int64_t{spec_.inner});
    in_.into(c, gate_up, x, false);
    const Tensor inner = ops::take_rows(c, out_.input_type(c, x.rows()), x.rows(), spec_.inner);
    ops::glu(c, inner, gate_up, spec_.activation);
    return out_.into(c, out, inner, accumulate);
  }
  Tensor inner = in_(c, x);
  if (spec_.gated) {
    const Tensor gate_up = inner;
    inner = c.arena.take(&kFloat32, {x.rows(), spec_.inner});
    const Tensor gate = gate_up.slice_columns(0, spec_.inner);
    if (spec_.gate_scale != 1.0f) ops::map(c, gate, ops::Map::kScale, spec_.gate_scale);
    if (spec_.gate_cutoff) ops::gaussian_top_k(c, gate, *spec_.gate_cutoff);
    ops::glu(c, inner, gate_up, spec_.activation);
  } else if (spec_.xielu) {
    ops::xielu(c, inner, xielu_);
  } else {
    ops::unary(c, inner, spec_.activation);
  }
  if (spec_.sub_norm) sub_norm_.in_place(c, inner);
  out_.into(c, out, inner, accumulate);
}

}  // namespace sluice
