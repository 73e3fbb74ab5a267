// Lightning attention: projections, linear attention, norm and gate.
#include "nn/recurrent/lightning.h"

#include <cmath>

namespace sluice {
namespace {

// The tensor is stored by head: query, key, value.
std::vector<RowRange> qkv_rows(const LightningSpec& s) {
  std::vector<RowRange> rows;
  for (int part = 0; part < 3; ++part) {
    for (int head = 0; head < s.heads; ++head) rows.push_back({(3 * head + part) * int64_t{s.head_dim}, s.head_dim});
  }
  return rows;
}

}  // namespace

std::vector<float> lightning_rates(int heads, int layer, int layers) {
  const double factor = 1.0 - layer / (layers - 1 + 1e-5) + 1e-5;
  std::vector<float> rates;
  for (int head = 1; head <= heads; ++head) {
    rates.push_back(static_cast<float>(-std::exp2(-8.0 * head / heads) * factor));
  }
  return rates;
}

Lightning::Lightning(const Weights& w, const LightningSpec& s, int hidden)
    : spec_(s),
      qkv_(w, {{"qkv_proj", 3 * s.width(), qkv_rows(s)}}, hidden, false),
      gate_(w, {{"output_gate", s.width()}}, hidden, false),
      out_(w, {{"out_proj", hidden}}, s.width(), false),
      norm_(w, "norm", s.width(), {.eps = s.norm_eps}),
      rates_(w.context(), s.rates) {}

void Lightning::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                           bool accumulate) const {
  const int64_t n = spec_.width();
  const Tensor qkv = qkv_(c, x), y = qkv.slice_columns(2 * n, n);
  ops::unary(c, qkv, spec_.activation);
  ops::head_scan(c, {.out = y,
                     .x = y,
                     .dt = {},
                     .b = qkv.slice_columns(n, n),
                     .c = qkv.slice_columns(0, n),
                     .a = rates_.data(),
                     .heads = spec_.heads,
                     .groups = spec_.heads,
                     .state = step.state,
                     .sequences = step.sequences()});
  norm_.in_place(c, y);
  ops::multiply(c, y, gate_(c, x), ops::Activation::kSigmoid);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
