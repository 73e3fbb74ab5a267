// Lightning attention: projections, linear attention, norm and gate.
#include "nn/recurrent/lightning.h"

#include <cmath>
#include <span>

namespace sluice {
namespace {

// Rows of a tensor that is stored by head: query, key, value. Empty: it stores all queries, all keys, all values.
std::vector<RowRange> qkv_rows(const LightningSpec& s) {
  std::vector<RowRange> rows;
  for (int part = 0; s.by_head && part < 3; ++part) {
    for (int head = 0; head < s.heads; ++head) rows.push_back({(3 * head + part) * int64_t{s.head_dim}, s.head_dim});
  }
  return rows;
}

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

std::vector<float> lightning_rates(int heads, int layer, int layers) {
  const double factor = 1.0 - layer / (layers - 1 + 1e-5) + 1e-5;
  std::vector<float> rates;
  for (int head = 1; head <= heads; ++head) {
    rates.push_back(static_cast<float>(-std::exp2(-8.0 * head / heads) * factor));
  }
  return rates;
}

Lightning::Lightning(const Weights& w, const LightningSpec& s, int hidden)
    : Lightning(w, s, hidden, even_part(w.context().ranks, s.heads)) {}

Lightning::Lightning(const Weights& w, const LightningSpec& s, int hidden, const std::optional<RowRange>& heads)
    : spec_(s),
      normed_(s.width()),
      qkv_(w, {{s.qkv, 3 * s.width(), qkv_rows(s)}}, hidden, s.qkv_bias, {.outputs = columns(s, heads, 3)}),
      gate_(w, {{s.gate, s.width()}}, hidden, false, {.outputs = columns(s, heads, 1)}),
      out_(w, {{s.out, hidden}}, s.width(), s.out_bias, out_split(s, heads)) {
  if (heads) {
    spec_.heads = static_cast<int>(heads->count);
    spec_.rates = picked(s.rates, {*heads});
  }
  if (s.qk_norm) {
    q_norm_ = Norm(w, s.q_norm, s.head_dim, {.eps = s.norm_eps});
    k_norm_ = Norm(w, s.k_norm, s.head_dim, {.eps = s.norm_eps});
  }
  load_norms(w, s, heads);
  rates_ = Vector(w.context(), spec_.rates);
}

// A rank norms its own columns if they are whole groups.
void Lightning::load_norms(const Weights& w, const LightningSpec& s, const std::optional<RowRange>& heads) {
  std::vector<float> weight = (w / s.norm).vector("weight", s.width());
  const int64_t columns = s.width() / s.norm_groups;
  if (heads && even_part(w.context().ranks, s.norm_groups)) {
    weight = picked(std::move(weight), {scaled(*heads, s.head_dim)});
    normed_ = spec_.width();
  } else if (heads) {
    w.context().note_exchange(normed_);
  }
  for (auto at = weight.begin(); at != weight.end(); at += columns) {
    norms_.emplace_back(w.context(), std::span(at, at + columns), NormSpec{.eps = s.norm_eps});
  }
}

// Rotates the heads in place.
void Lightning::rotate(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x) const {
  const Tensor shape(x.data, &kFloat32, {1, 1, 8, spec_.head_dim});  // stands for caches that are not touched
  ops::RopeStoreArgs args;
  args.q = x, args.cos_sin = step.rope->cos_sin, args.positions = step.rope->rows;
  args.k_cache = args.v_cache = shape;
  ops::rope_store(c, args);
}

void Lightning::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                           bool accumulate) const {
  const int64_t n = spec_.width();
  const Tensor qkv = qkv_(c, x);
  const Tensor q = qkv.slice_columns(0, n), k = qkv.slice_columns(n, n), y = qkv.slice_columns(2 * n, n);
  if (spec_.activation != ops::Activation::kIdentity) ops::unary(c, qkv, spec_.activation);
  if (spec_.qk_norm) {
    q_norm_.in_place(c, by_heads(q, spec_.heads));
    k_norm_.in_place(c, by_heads(k, spec_.heads));
  }
  if (spec_.rotates) {
    rotate(c, step, q);
    rotate(c, step, k);
  }
  if (spec_.q_scale != 1.0f) ops::map(c, q, ops::Map::kScale, spec_.q_scale);
  ops::head_scan(c, {.out = y,
                     .x = y,
                     .dt = {},
                     .b = k,
                     .c = q,
                     .a = rates_.data(),
                     .heads = spec_.heads,
                     .groups = spec_.heads,
                     .state = step.state,
                     .sequences = step.sequences()});
  on_whole_rows(c, y, normed_, [&](const Tensor& rows) {
    const int64_t columns = normed_ / static_cast<int64_t>(norms_.size());
    for (size_t i = 0; i < norms_.size(); ++i) {
      norms_[i].in_place(c, rows.slice_columns(static_cast<int64_t>(i) * columns, columns));
    }
  });
  ops::multiply(c, y, gate_(c, x), ops::Activation::kSigmoid);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
