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

namespace {

// The columns of some heads, as ranges of outputs that have all heads `copies` times. Empty: all.
std::vector<RowRange> columns(const LightningSpec& s, const std::optional<RowRange>& heads, int copies) {
  std::vector<RowRange> kept;
  for (int i = 0; heads && i < copies; ++i) kept.push_back(scaled(*heads, s.head_dim, i * s.width()));
  return kept;
}

Linear::Split out_split(const LightningSpec& s, const std::optional<RowRange>& heads) {
  if (!heads) return {};
  return {.inputs = scaled(*heads, s.head_dim)};
}

}  // namespace

Lightning::Lightning(const Weights& w, const LightningSpec& s, int hidden)
    : Lightning(w, s, hidden, even_part(w.context().ranks, s.heads)) {}

Lightning::Lightning(const Weights& w, const LightningSpec& s, int hidden, const std::optional<RowRange>& heads)
    : spec_(s),
      whole_(s.width()),
      qkv_(w, {{"qkv_proj", 3 * s.width(), qkv_rows(s)}}, hidden, false, {.outputs = columns(s, heads, 3)}),
      gate_(w, {{"output_gate", s.width()}}, hidden, false, {.outputs = columns(s, heads, 1)}),
      out_(w, {{"out_proj", hidden}}, s.width(), false, out_split(s, heads)),
      norm_(w, "norm", s.width(), {.eps = s.norm_eps}) {
  if (heads) {
    spec_.heads = static_cast<int>(heads->count);
    spec_.rates = picked(s.rates, {*heads});
    w.context().note_exchange(whole_);
  }
  rates_ = Vector(w.context(), spec_.rates);
}

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
  on_whole_rows(c, y, whole_, [&](const Tensor& rows) { norm_.in_place(c, rows); });
  ops::multiply(c, y, gate_(c, x), ops::Activation::kSigmoid);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
