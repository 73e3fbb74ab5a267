// Projections, convolution, delta rule, norm and gate.
#include "nn/delta_net.h"

#include <cmath>
#include <limits>

namespace sluice {
namespace {

// Rows of a projection stored key head by key head: `parts` are the rows of each part within one.
std::vector<RowRange> by_part(int key_heads, std::initializer_list<int64_t> parts) {
  int64_t stride = 0, at = 0;
  for (const int64_t rows : parts) stride += rows;
  std::vector<RowRange> all;
  for (const int64_t rows : parts) {
    for (int head = 0; head < key_heads; ++head) all.push_back({head * stride + at, rows});
    at += rows;
  }
  return all;
}

std::vector<Linear::Part> in_parts(const DeltaNetSpec& s) {
  const int64_t q = s.keys(), v = s.values();
  if (s.layout == DeltaNetLayout::kSeparate) {
    return {{"in_proj_qkv", 2 * q + v}, {"in_proj_z", v}, {"in_proj_b", s.heads}, {"in_proj_a", s.heads}};
  }
  if (s.layout == DeltaNetLayout::kApart) {
    return {{"q_proj", q}, {"k_proj", q}, {"v_proj", v}, {"g_proj", v}, {"b_proj", s.heads}, {"a_proj", s.heads}};
  }
  const int64_t mine = s.heads / s.key_heads, values = mine * s.value_dim;
  return {{"in_proj_qkvz", 2 * (q + v), by_part(s.key_heads, {s.key_dim, s.key_dim, values, values})},
          {"in_proj_ba", 2 * int64_t{s.heads}, by_part(s.key_heads, {mine, mine})}};
}

std::vector<CausalConv::Part> conv_parts(const DeltaNetSpec& s) {
  if (s.layout != DeltaNetLayout::kApart) return {{"conv1d", s.conv().channels}};
  return {{"q_conv1d", s.keys()}, {"k_conv1d", s.keys()}, {"v_conv1d", s.values()}};
}

}  // namespace

Norm unit_length(const LoadContext& context, int dim, float scale) {
  const auto n = static_cast<float>(dim);
  return Norm(context, std::vector<float>(static_cast<size_t>(dim), scale / std::sqrt(n)), {.eps = 1e-6f / n});
}

Tensor by_heads(const Tensor& x, int heads) {
  Tensor out = x;
  out.shape = {x.shape[0], heads, x.shape[1] / heads};
  return out;
}

DeltaNet::DeltaNet(const Weights& w, const DeltaNetSpec& s, int hidden)
    : spec_(s),
      in_(w, in_parts(s), hidden, false),
      out_(w, {{s.layout == DeltaNetLayout::kApart ? "o_proj" : "out_proj", hidden}}, s.values(), false),
      conv_(w, conv_parts(s), s.conv()),
      q_norm_(unit_length(w.context(), s.key_dim, 1.0f / std::sqrt(static_cast<float>(s.key_dim)))),
      k_norm_(unit_length(w.context(), s.key_dim, 1.0f)),
      norm_(w, s.layout == DeltaNetLayout::kApart ? "o_norm" : "norm", s.value_dim, {.eps = s.norm_eps}),
      a_(w.context(), decay_rates(w.vector("A_log", s.heads))),
      dt_bias_(w.context(), w.vector("dt_bias", s.heads)) {}

void DeltaNet::operator()(ops::Ctx& c, const MixerStep& step, const Tensor& out, const Tensor& x,
                          bool accumulate) const {
  const int64_t keys = spec_.keys(), values = spec_.values(), qkv = 2 * keys + values;
  const int64_t conv_values = spec_.conv().state_values();
  const Tensor projected = in_(c, x);
  const Tensor mixed = conv_(c, step, projected.slice_columns(0, qkv), step.state.slice_columns(0, conv_values));
  const Tensor q = mixed.slice_columns(0, keys), k = mixed.slice_columns(keys, keys);
  const Tensor y = mixed.slice_columns(2 * keys, values), gate = projected.slice_columns(qkv, values);
  const Tensor beta = projected.slice_columns(qkv + values, spec_.heads);
  const Tensor dt = projected.slice_columns(qkv + values + spec_.heads, spec_.heads);
  q_norm_.in_place(c, by_heads(q, spec_.key_heads));
  k_norm_.in_place(c, by_heads(k, spec_.key_heads));
  ops::unary(c, beta, ops::Activation::kSigmoid);
  if (spec_.beta_scale != 1.0f) ops::map(c, beta, ops::Map::kScale, spec_.beta_scale);
  ops::softplus(c, dt, dt_bias_.data(), 0.0f, std::numeric_limits<float>::infinity());
  ops::delta_rule(c, {.out = y,
                      .q = q,
                      .k = k,
                      .v = y,
                      .dt = dt,
                      .beta = beta,
                      .a = a_.data(),
                      .heads = spec_.heads,
                      .key_heads = spec_.key_heads,
                      .state = step.state.slice_columns(conv_values, values * spec_.key_dim),
                      .sequences = step.sequences()});
  norm_.in_place(c, by_heads(y, spec_.heads));
  ops::multiply(c, y, gate, ops::Activation::kSilu);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
