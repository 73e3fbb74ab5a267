// Grouped-query attention: projections, query and key norms, rotation, attention, output projection.
#include "nn/attention/attention.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <utility>

#include "nn/attention/key_ranks.h"

namespace sluice {
namespace {

// True if the fused projection also gives a gate for every value of the heads' results.
bool value_gates(const AttentionSpec& s) { return s.output_gate && !s.head_gates; }
// Outputs of the fused projection for the queries.
int64_t query_outputs(const AttentionSpec& s) { return s.q_rank > 0 ? s.q_rank : s.q_width(); }

std::vector<Linear::Part> qkv_parts(const AttentionSpec& s) {
  if (s.qkv.size() == 1) {
    const int64_t queries = (value_gates(s) ? 2 : 1) * s.q_width();
    return {{s.qkv[0], queries + s.kv_width() + s.v_width(), s.qkv_rows, s.transposed}};
  }
  const bool gate_in_q = value_gates(s) && s.gate.empty();
  std::vector<RowRange> q_rows;  // all queries first, then all gates
  for (int i = 0; gate_in_q && i < 2 * s.heads; ++i) {
    q_rows.push_back({(2 * (i % s.heads) + i / s.heads) * int64_t{s.head_dim}, s.head_dim});
  }
  std::vector<Linear::Part> parts{{s.qkv[0], (gate_in_q ? 2 : 1) * query_outputs(s), q_rows, s.transposed}};
  if (value_gates(s) && !s.gate.empty()) {
    parts.push_back({.name = s.gate, .outputs = s.q_width(), .transposed = s.transposed, .no_bias = !s.gate_bias});
  }
  if (s.shared_kv) return parts;
  if (s.qkv.size() == 2) {
    parts.push_back({s.qkv[1], s.kv_width() + s.v_width(), s.qkv_rows, s.transposed});
    return parts;
  }
  parts.push_back({s.qkv[1], s.kv_width(), {}, s.transposed});
  parts.push_back({s.qkv[2], s.v_width(), {}, s.transposed});
  return parts;
}

// The outputs of the fused projection that belong to these heads.
std::vector<RowRange> qkv_outputs(const AttentionSpec& s, const HeadPart& part) {
  const int64_t dim = s.head_dim;
  std::vector<RowRange> kept{s.q_rank > 0 ? RowRange{0, s.q_rank} : scaled(part.queries, dim)};
  int64_t first = query_outputs(s);
  if (value_gates(s)) kept.push_back(scaled(part.queries, dim, std::exchange(first, 2 * first)));
  if (s.shared_kv) return kept;
  kept.push_back(scaled(part.keys, dim, first));
  kept.push_back(scaled(part.keys, s.value_columns(), first + s.kv_width()));
  return kept;
}

Linear::Split qkv_split(const AttentionSpec& s, const std::optional<HeadPart>& part) {
  if (!part) return {};
  return {.outputs = qkv_outputs(s, *part)};
}

Linear::Split heads_split(int64_t width, const std::optional<HeadPart>& part) {
  if (!part) return {};
  return {.outputs = {scaled(part->queries, width)}};
}

Linear::Split out_split(const AttentionSpec& s, const std::optional<HeadPart>& part) {
  if (!part) return {};
  return {.inputs = scaled(part->queries, s.value_columns())};
}

// The layer of one rank's heads.
AttentionSpec spec_of(const AttentionSpec& s, const std::optional<HeadPart>& part) {
  if (!part) return s;
  AttentionSpec mine = s;
  mine.heads = static_cast<int>(part->queries.count);
  mine.kv_heads = static_cast<int>(part->keys.count);
  mine.alibi_slopes = picked(s.alibi_slopes, {part->queries});
  mine.relative_bias = picked(s.relative_bias, {scaled(part->queries, 2 * int64_t{s.relative_reach} + 1)});
  return mine;
}

// The ranks that have this rank's keys. Biases by distance are for keys that follow each other, so such layers cannot
// divide them.
int copies_of(const AttentionSpec& s, const std::optional<HeadPart>& part, const Ranks& ranks) {
  const bool biased = !s.alibi_slopes.empty() || !s.relative_bias.empty();
  return part && !biased ? std::max(1, ranks.size / s.kv_heads) : 1;
}

}  // namespace

std::optional<HeadPart> head_part(const Ranks& ranks, const AttentionSpec& s) {
  const std::optional<RowRange> queries = even_part(ranks, s.heads);
  if (!queries) return std::nullopt;
  if (const auto keys = even_part(ranks, s.kv_heads)) return HeadPart{*queries, *keys};
  // A norm over all heads cannot be put together from heads that several ranks have.
  if (ranks.size % s.kv_heads != 0 || s.qk_norm == QkNorm::kProjection) return std::nullopt;
  return HeadPart{*queries, {int64_t{ranks.rank} * s.kv_heads / ranks.size, 1}};
}

std::vector<RowRange> grouped_qkv_rows(const AttentionSpec& s) {
  const int64_t dim = s.head_dim, group = s.heads / s.kv_heads, stride = (group + 2) * dim;
  std::vector<RowRange> rows;
  rows.reserve(size_t{3} * static_cast<size_t>(s.kv_heads));
  for (int i = 0; i < s.kv_heads; ++i) rows.push_back({i * stride, group * dim});
  for (int i = 0; i < s.kv_heads; ++i) rows.push_back({i * stride + group * dim, dim});
  for (int i = 0; i < s.kv_heads; ++i) rows.push_back({i * stride + (group + 1) * dim, dim});
  return rows;
}

std::vector<float> alibi_slopes(int heads) {
  int power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes;
  for (int i = 1; i <= power; ++i) slopes.push_back(static_cast<float>(std::exp2(-8.0 * i / power)));
  for (int i = 1; static_cast<int>(slopes.size()) < heads; i += 2) {
    slopes.push_back(static_cast<float>(std::exp2(-4.0 * i / power)));
  }
  return slopes;
}

const char* Attention::needs_places() const {
  if (spec_.window > 0 || spec_.chunk > 0) return "it has layers with a sliding window";
  if (!spec_.alibi_slopes.empty() || !spec_.relative_bias.empty()) return "it has biases by distance";
  return nullptr;
}

HeadNorm::HeadNorm(const Weights& w, const std::string& name, int heads, RowRange part, const AttentionSpec& s)
    : kind_(s.qk_norm), heads_(static_cast<int>(part.count)), whole_(int64_t{heads} * s.head_dim) {
  const NormSpec& norm = s.qk_norm_spec;
  if (kind_ == QkNorm::kHead || kind_ == QkNorm::kHeadAfterRope) norms_.emplace_back(w, name, s.head_dim, norm);
  if (kind_ == QkNorm::kProjection) {
    norms_.emplace_back(w, name, whole_, norm);
    if (heads_ < heads) w.context().note_exchange(whole_);
  }
  if (kind_ != QkNorm::kEachHead) return;
  if (s.norm_per_head_tensors) {
    for (int i = 0; i < heads; ++i) {
      Norm of_head(w / name / "norms", std::to_string(i), s.head_dim, norm);
      if (i >= part.begin && i < part.begin + part.count) norms_.push_back(std::move(of_head));
    }
    return;
  }
  const Shape shape{heads, s.head_dim};
  std::vector<float> all = w.has(name) ? w.vector(name, shape) : (w / name).vector("weight", shape);
  const std::vector<float> weights = picked(std::move(all), {scaled(part, s.head_dim)});
  for (auto at = weights.begin(); at != weights.end(); at += s.head_dim) {
    norms_.emplace_back(w.context(), std::span(at, at + s.head_dim), norm);
  }
}

void HeadNorm::operator()(ops::Ctx& c, const Tensor& x) const {
  switch (kind_) {
    case QkNorm::kNone:
      return;
    case QkNorm::kProjection:
      return on_whole_rows(c, x, whole_, [&](const Tensor& rows) { norms_[0].in_place(c, rows); });
    case QkNorm::kHead:
    case QkNorm::kHeadAfterRope:
      return norms_[0].in_place(c, by_heads(x, heads_));
    case QkNorm::kEachHead: {
      const int64_t dim = x.shape[1] / heads_;
      for (int i = 0; i < heads_; ++i) norms_[i].in_place(c, x.slice_columns(i * dim, dim));
      return;
    }
  }
}

Attention::Attention(const Weights& w, const AttentionSpec& s, int hidden)
    : Attention(w, s, hidden, head_part(w.context().ranks, s)) {}

Attention::Attention(const Weights& w, const AttentionSpec& s, int hidden, const std::optional<HeadPart>& part)
    : spec_(spec_of(s, part)),
      whole_(s.out_width()),
      qkv_(w, qkv_parts(s), hidden, s.qkv_bias, qkv_split(s, part)),
      out_(w, {{s.out, hidden, {}, s.transposed}}, s.out_width(), s.out_bias, out_split(s, part)) {
  CHECK(s.q_rank == 0 || (!value_gates(s) && s.clip == 0), "queries of two steps with gates or a clip");
  if (s.q_rank > 0) {
    q_inner_norm_ = Norm(w, s.q_inner_norm, s.q_rank, s.qk_norm_spec);
    q_up_ = Linear(w, {{s.q_up, s.q_width()}}, s.q_rank, false, heads_split(s.head_dim, part));
  }
  if (s.head_gates) gate_ = Linear(w, {{s.gate, s.heads}}, hidden, false, heads_split(1, part));
  const HeadPart mine = part.value_or(HeadPart{{0, s.heads}, {0, s.kv_heads}});
  q_norm_ = HeadNorm(w, s.q_norm, s.heads, mine.queries, s);
  if (!s.shared_kv) k_norm_ = HeadNorm(w, s.k_norm, s.kv_heads, mine.keys, s);
  if (s.value_norm) value_norm_ = Norm(w.context(), {}, {.eps = s.qk_norm_spec.eps, .weight = false});
  if (s.sub_norm) sub_norm_ = Norm(w, "attn_sub_norm", s.out_width(), s.sub_norm_spec);
  LoadContext& context = w.context();
  if (s.sub_norm && part) context.note_exchange(whole_);
  if (s.sinks) sinks_ = Vector(context, picked(w.vector(s.sink, s.heads), {mine.queries}));
  slopes_ = Vector(context, spec_.alibi_slopes);
  relative_bias_ = Vector(context, spec_.relative_bias);
  spec_.relative_bias = {};  // may be large, and is not needed any more
  context.note_attention(spec_.heads * context.key_parts, static_cast<int>(s.value_columns()));
  copies_ = copies_of(s, part, context.ranks);
  attend_floats_ = attend_floats(context, spec_.heads, s.head_dim, s.value_columns());
}

void Attention::rotate_and_store(ops::Ctx& c, const TokenMixerStep& step, const Tensor& q, const Tensor& k,
                                 const Tensor& v) const {
  ops::RopeStoreArgs args = step.rotation(q, k, v);
  args.interleaved = spec_.interleaved_rope;
  if (rotation_normalizes(step)) args.q_norm = q_norm_.of_heads(), args.k_norm = k_norm_.of_heads();
  const bool norm_after = spec_.qk_norm == QkNorm::kHeadAfterRope;
  if (!norm_after && !spec_.shared_kv && step.query_rope == nullptr) return ops::rope_store(c, args);
  // The unfused path: rotate the queries, rotate and norm the keys, then call the op without rotations.
  const auto rotate = [&](const Tensor& x, const Rope::Rows* rope) {
    if (rope == nullptr) return;
    ops::RopeStoreArgs alone = args;
    alone.q = x, alone.k = {}, alone.cos_sin = rope->cos_sin, alone.positions = rope->rows;
    ops::rope_store(c, alone);
  };
  rotate(q, step.query_rope != nullptr ? step.query_rope : step.rope);
  if (norm_after) q_norm_(c, q);
  if (spec_.shared_kv) return;
  rotate(k, step.rope);
  if (norm_after) k_norm_(c, k);
  args.cos_sin = {};
  ops::rope_store(c, args);
}

bool Attention::rotation_normalizes(const TokenMixerStep& step) const {
  if (step.rope == nullptr || step.query_rope != nullptr || spec_.shared_kv || spec_.clip > 0) return false;
  return q_norm_.of_heads().weight != nullptr;
}

DType Attention::rows_type(const ops::Ctx& c, const TokenMixerStep& step, int64_t rows) const {
  const bool fused =
      rotation_normalizes(step) && ops::normalizes_heads(c, step.rope->cos_sin, spec_.interleaved_rope, step.kv->k);
  const bool normalizes = spec_.qk_norm != QkNorm::kNone && !fused;
  const bool plain = !normalizes && !spec_.value_norm && spec_.value_scale == 1.0f && spec_.clip == 0 &&
                     !value_gates(spec_) && spec_.q_rank == 0;
  const DType cache = step.kv->k.dtype;
  const bool rounds = cache != &kFloat32 && cache != &kFloat16;
  return plain && rounds && step.kv->share.whole() ? qkv_.output_type(c, rows) : &kFloat32;
}

Tensor Attention::gated(ops::Ctx& c, const Tensor& mixed, const Tensor& qkv, const Tensor& x) const {
  const Tensor gates = spec_.head_gates ? gate_(c, x) : qkv.slice_columns(spec_.q_width(), spec_.q_width());
  if (spec_.softplus_gate) ops::softplus(c, gates, nullptr, 0.0f, std::numeric_limits<float>::infinity());
  if (!spec_.head_gates) {
    ops::multiply(c, mixed, gates, spec_.softplus_gate ? ops::Activation::kIdentity : ops::Activation::kSigmoid);
    return mixed;
  }
  if (!spec_.softplus_gate) ops::unary(c, gates, ops::Activation::kSigmoid);
  const Tensor out = c.arena.take(&kFloat32, mixed.shape);
  const int64_t vectors = mixed.rows() * spec_.heads;
  ops::combine(c, {.out = Tensor(out.data, &kFloat32, {vectors, spec_.value_columns()}),
                   .x = Tensor(mixed.data, &kFloat32, {vectors, spec_.value_columns()}),
                   .weights = Tensor(gates.data, &kFloat32, {vectors, 1}),
                   .places = {}});
  return out;
}

void Attention::with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                          const NextNorm* next) const {
  const Tensor qkv = ops::take_rows(c, rows_type(c, step, x.rows()), x.rows(), qkv_.outputs());
  qkv_.into(c, qkv, x, false);
  Tensor q = qkv.slice_columns(0, query_outputs(spec_)), k, v;
  if (spec_.q_rank > 0) {
    q_inner_norm_.in_place(c, q);
    q = q_up_(c, q);
  }
  if (!spec_.shared_kv) {
    const int64_t keys = query_outputs(spec_) + (value_gates(spec_) ? spec_.q_width() : 0);
    k = qkv.slice_columns(keys, spec_.kv_width());
    v = qkv.slice_columns(keys + spec_.kv_width(), spec_.v_width());
    if (spec_.value_scale != 1.0f) ops::map(c, v, ops::Map::kScale, spec_.value_scale);
  }
  if (spec_.qk_norm != QkNorm::kHeadAfterRope && !rotation_normalizes(step)) {
    q_norm_(c, q);
    if (!spec_.shared_kv) k_norm_(c, k);
  }
  if (spec_.value_norm && !spec_.shared_kv) value_norm_.in_place(c, by_heads(v, spec_.kv_heads));
  if (spec_.clip > 0) ops::map(c, qkv, ops::Map::kClamp, spec_.clip);
  rotate_and_store(c, step, q, k, v);
  // Use 16 bits if only the output projection reads the result and it takes 16-bit inputs.
  DType type = spec_.output_gate || spec_.sub_norm ? &kFloat32 : out_.input_type(c, x.rows());
  if (type == &kFloat8E4M3) type = &kFloat32;  // fp8 has one scale per row, but the op writes a row in pieces
  if (!step.kv->share.whole()) type = &kFloat32;
  Tensor mixed = ops::take_rows(c, type, x.rows(), spec_.out_width());
  ops::AttentionArgs args = step.attention(mixed, q);
  args.heads = spec_.heads, args.scale = spec_.scale;
  args.causal = spec_.causal, args.window = spec_.window, args.chunk = spec_.chunk;
  args.soft_cap = spec_.soft_cap, args.sinks = sinks_.data();
  args.alibi_slopes = slopes_.data();
  args.relative_bias = relative_bias_.data(), args.relative_reach = spec_.relative_reach;
  attend(c, args);
  if (spec_.output_gate) mixed = gated(c, mixed, qkv, x);
  if (spec_.sub_norm) on_whole_rows(c, mixed, whole_, [&](const Tensor& rows) { sub_norm_.in_place(c, rows); });
  out_.into(c, out, mixed, accumulate, next);
}

}  // namespace sluice
