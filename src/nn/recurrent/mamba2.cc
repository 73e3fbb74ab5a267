// Mamba 2: projections, convolution, scan, gate and norm.
#include "nn/recurrent/mamba2.h"

namespace sluice {

namespace {

// The outputs of the input projection (gate, x, b, c, dt) or, without gate and dt, the channels of the convolution that
// belong to these heads and groups.
std::vector<RowRange> columns_of(const Mamba2Spec& s, RowRange heads, RowRange groups, bool projection) {
  std::vector<RowRange> kept;
  int64_t first = 0;
  const auto add = [&](RowRange range, int64_t width, int64_t count) {
    kept.push_back(scaled(range, width, first));
    first += count * width;
  };
  if (projection) add(heads, s.head_dim, s.heads);
  add(heads, s.head_dim, s.heads);
  for (int i = 0; i < 2; ++i) add(groups, s.state, s.groups);
  if (projection) add(heads, 1, s.heads);
  return kept;
}

}  // namespace

std::optional<Mamba2::Part> Mamba2::part_of(const Ranks& ranks, const Mamba2Spec& s) {
  const std::optional<RowRange> heads = even_part(ranks, s.heads);
  if (!heads) return std::nullopt;
  if (const auto groups = even_part(ranks, s.groups)) return Part{*heads, *groups};
  if (ranks.size % s.groups != 0) return std::nullopt;
  return Part{*heads, {int64_t{ranks.rank} * s.groups / ranks.size, 1}};  // several ranks have the same group
}

Mamba2::Mamba2(const Weights& w, const Mamba2Spec& s, int hidden)
    : Mamba2(w, s, hidden, part_of(w.context().ranks, s)) {}

Mamba2::Mamba2(const Weights& w, const Mamba2Spec& s, int hidden, const std::optional<Part>& part)
    : spec_(s),
      normed_(s.inner()),
      in_(w, {{"in_proj", s.inner() + s.conv().channels + s.heads}}, hidden, s.in_bias,
          {.outputs = part ? columns_of(s, part->heads, part->groups, true) : std::vector<RowRange>{}}),
      out_(w, {{"out_proj", hidden}}, s.inner(), s.out_bias,
           part ? Linear::Split{.inputs = scaled(part->heads, s.head_dim)} : Linear::Split{}),
      conv_(w, "conv1d", s.conv(), part ? columns_of(s, part->heads, part->groups, false) : std::vector<RowRange>{}) {
  const std::vector<RowRange> heads = part ? std::vector{part->heads} : std::vector<RowRange>{};
  LoadContext& context = w.context();
  a_ = Vector(context, decay_rates(picked(w.vector("A_log", s.heads), heads)));
  d_ = Vector(context, picked(w.vector("D", s.heads), heads));
  dt_bias_ = Vector(context, picked(w.vector("dt_bias", s.heads), heads));
  if (part) {
    spec_.heads = static_cast<int>(part->heads.count);
    spec_.groups = static_cast<int>(part->groups.count);
  }
  if (s.norm) load_norms(w, s, part);
}

// A rank norms its own columns if they are whole groups.
void Mamba2::load_norms(const Weights& w, const Mamba2Spec& whole, const std::optional<Part>& part) {
  const NormSpec norm{.eps = whole.norm_eps};
  std::vector<float> weight = (w / "norm").vector("weight", whole.inner());
  const int64_t columns = whole.inner() / whole.norm_groups;
  if (part && even_part(w.context().ranks, whole.norm_groups)) {
    weight = picked(std::move(weight), {scaled(part->heads, whole.head_dim)});
    normed_ = spec_.inner();
  } else if (part) {
    w.context().note_exchange(normed_);
  }
  for (auto at = weight.begin(); at != weight.end(); at += columns) {
    norms_.emplace_back(w.context(), std::span(at, at + columns), norm);
  }
}

void Mamba2::scale(ops::Ctx& c, const Tensor& projected) const {
  const int64_t inner = spec_.inner(), shared = spec_.projections();
  const std::array<int64_t, 5> widths{inner, inner, shared, shared, spec_.heads};
  int64_t begin = 0;
  for (size_t i = 0; i < widths.size(); begin += widths[i++]) {
    if (spec_.scales[i] == 1.0f) continue;
    ops::map(c, projected.slice_columns(begin, widths[i]), ops::Map::kScale, spec_.scales[i]);
  }
}

void Mamba2::gate_and_norm(ops::Ctx& c, const Tensor& y, const Tensor& gate) const {
  const auto norm = [&] {
    if (norms_.empty()) return;
    on_whole_rows(c, y, normed_, [&](const Tensor& rows) {
      const int64_t columns = normed_ / static_cast<int64_t>(norms_.size());
      for (size_t i = 0; i < norms_.size(); ++i) {
        norms_[i].in_place(c, rows.slice_columns(static_cast<int64_t>(i) * columns, columns));
      }
    });
  };
  if (spec_.norm_before_gate) norm();
  ops::multiply(c, y, gate, ops::Activation::kSilu);
  if (!spec_.norm_before_gate) norm();
}

void Mamba2::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                        bool accumulate) const {
  const int64_t inner = spec_.inner(), shared = spec_.projections(), conv_values = spec_.conv().state_values();
  const Tensor projected = in_(c, x);
  scale(c, projected);
  const Tensor gate = projected.slice_columns(0, inner), xbc = projected.slice_columns(inner, inner + 2 * shared);
  const Tensor dt = projected.slice_columns(2 * inner + 2 * shared, spec_.heads);
  const Tensor mixed = conv_(c, step, xbc, step.state.slice_columns(0, conv_values));
  const Tensor y = mixed.slice_columns(0, inner);
  ops::softplus(c, dt, dt_bias_.data(), spec_.dt_low, spec_.dt_high);
  ops::head_scan(c, {.out = y,
                     .x = y,
                     .dt = dt,
                     .b = mixed.slice_columns(inner, shared),
                     .c = mixed.slice_columns(inner + shared, shared),
                     .a = a_.data(),
                     .d = d_.data(),
                     .heads = spec_.heads,
                     .groups = spec_.groups,
                     .state = step.state.slice_columns(conv_values, inner * spec_.state),
                     .sequences = step.sequences()});
  gate_and_norm(c, y, gate);
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
