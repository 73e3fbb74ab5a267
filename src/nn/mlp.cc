// The MLP on the op table.
#include "nn/mlp.h"

namespace sluice {
namespace {

std::vector<Linear::Part> in_parts(const MlpSpec& s) {
  const int64_t width = (s.gated ? 2 : 1) * int64_t{s.inner} / static_cast<int64_t>(s.in.size());
  std::vector<Linear::Part> parts;
  for (const std::string& name : s.in) parts.push_back({name, width, {}, s.transposed});
  return parts;
}

Linear::Part out_part(const MlpSpec& s, int hidden) { return {s.out, hidden, {}, s.transposed}; }

// This rank's part of the inner width; nullopt: all of it. Steps between the projections that see whole rows gather
// them, which takes equal parts.
std::optional<RowRange> inner_part(const Weights& w, const MlpSpec& s, int hidden) {
  const Ranks& ranks = w.context().ranks;
  const bool whole_rows = s.sub_norm || s.gate_cutoff;
  const int64_t unit = Linear::input_unit(w, out_part(s, hidden), s.inner);
  if (const auto part = grouped_part(ranks, s.inner, unit, whole_rows)) return part;
  return even_part(ranks, s.inner);
}

Linear::Split in_split(const MlpSpec& s, const std::optional<RowRange>& part) {
  if (!part) return {};
  if (!s.gated) return {.outputs = {*part}};
  return {.outputs = {*part, {s.inner + part->begin, part->count}}};
}

}  // namespace

Mlp::Mlp(const Weights& w, const MlpSpec& s, int hidden, bool sum) : Mlp(w, s, hidden, sum, inner_part(w, s, hidden)) {}

Mlp::Mlp(const Weights& w, const MlpSpec& s, int hidden, bool sum, std::optional<RowRange> part)
    : spec_(s),
      whole_(s.inner),
      in_(w, in_parts(s), hidden, s.bias, in_split(s, part)),
      out_(w, {out_part(s, hidden)}, s.inner, s.bias || s.out_bias, {.inputs = part, .sum = sum}) {
  if (part) spec_.inner = static_cast<int>(part->count);
  if (s.sub_norm) sub_norm_ = Norm(w, "ffn_sub_norm", s.inner, s.sub_norm_spec);
  if (part && (s.sub_norm || s.gate_cutoff)) w.context().note_exchange(s.inner);
}

void clamped_product(ops::Ctx& c, const Tensor& out, const Tensor& gate_up, ops::Activation activation, float limit,
                     bool clamp_first) {
  const Tensor gate = gate_up.slice_columns(0, out.shape[1]);
  ops::unary(c, gate, activation);
  if (clamp_first) {  // SiLU grows from zero on, and is above -0.3
    CHECK(activation == ops::Activation::kSilu && limit > 1, "limit {}", limit);
    ops::map(c, gate, ops::Map::kClamp, ops::activate(activation, limit));
  }
  ops::map(c, gate_up, ops::Map::kClamp, limit);
  ops::glu(c, out, gate_up, ops::Activation::kIdentity);
}

int64_t Mlp::floats_per_token(const MlpSpec& s) { return (s.gated ? 3 : 1) * int64_t{s.inner}; }

void Mlp::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next) const {
  const bool clamps = spec_.clamp > 0 || spec_.glu_limit > 0;
  if (spec_.gated && spec_.gate_scale == 1.0f && !spec_.gate_cutoff && !clamps && !spec_.sub_norm) {
    const DType type = out_.input_type(c, x.rows());
    const Tensor memory = c.arena.take(&kFloat32, {x.rows(), spec_.inner}), inner = ops::rows_in(memory, type);
    if (in_.gated_into(c, inner, x, spec_.activation)) return out_.into(c, out, inner, accumulate, next);
    const Tensor gate_up = ops::take_rows(c, in_.output_type(c, x.rows()), x.rows(), 2 * int64_t{spec_.inner});
    in_.into(c, gate_up, x, false);
    // Rows of 8-bit floats have their scales behind them, so those that are multiplied together are made together.
    const auto make = [&](int64_t first, int64_t rows) {
      const Tensor part = ops::rows_in(memory.slice_rows(first, rows), type);
      ops::glu(c, part, gate_up.slice_rows(first, rows), spec_.activation);
      return part;
    };
    return out_.into(c, out, make, accumulate, next);
  }
  Tensor inner = in_(c, x);
  if (spec_.gated) {
    const Tensor gate_up = inner;
    inner = c.arena.take(&kFloat32, {x.rows(), spec_.inner});
    const Tensor gate = gate_up.slice_columns(0, spec_.inner);
    if (spec_.gate_scale != 1.0f) ops::map(c, gate, ops::Map::kScale, spec_.gate_scale);
    if (spec_.gate_cutoff) {
      on_whole_rows(c, gate, whole_, [&](const Tensor& rows) { ops::gaussian_top_k(c, rows, *spec_.gate_cutoff); });
    }
    if (spec_.clamp > 0) {
      clamped_product(c, inner, gate_up, spec_.activation, spec_.clamp, spec_.clamp_first);
    } else if (spec_.glu_limit > 0) {
      ops::clamped_glu(c, inner, gate_up, spec_.glu_alpha, spec_.glu_limit);
    } else {
      ops::glu(c, inner, gate_up, spec_.activation);
    }
  } else {
    ops::unary(c, inner, spec_.activation);
  }
  if (spec_.sub_norm) on_whole_rows(c, inner, whole_, [&](const Tensor& rows) { sub_norm_.in_place(c, rows); });
  out_.into(c, out, inner, accumulate, next);
}

}  // namespace sluice
