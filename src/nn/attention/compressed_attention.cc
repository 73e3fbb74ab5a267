// Compressed attention: projections, the key cache, entries, and the grouped output projection.
#include "nn/attention/compressed_attention.h"

#include <algorithm>

namespace sluice {
namespace {

ops::PagedSequences paged(const TokenMixerStep& step) {
  return {step.batch.query_start, step.batch.kv_len, step.block_table(), step.batch.block_table_stride};
}

// Published checkpoints call the norm of the keys kv_norm; transformers writes it as norm.
std::string key_norm(const Weights& w) { return w.has("kv_norm.weight") ? "kv_norm" : "norm"; }

}  // namespace

Compressor::Compressor(const Weights& w, const CompressorSpec& spec, int dim, const NormSpec& norm, int hidden)
    : series_(spec.series), dim_(dim), eps_(norm.eps) {
  const int64_t width = int64_t{spec.series} * dim;
  in_ = Linear(w, {{"wkv", width}, {"wgate", width}}, hidden, false);
  bias_ = Vector(w.context(), w.vector("ape", Shape{spec.rate, width}));
  norm_ = Vector(w.context(), w.vector("norm.weight", dim));
}

void Compressor::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& state,
                            const ops::EntryCache& entries) const {
  Arena::Scope scope(c.arena);
  const Tensor both = in_(c, x);
  const int64_t width = series_ * dim_;
  ops::compress(c, {.x = both.slice_columns(0, width),
                    .gates = both.slice_columns(width, width),
                    .series = series_,
                    .bias = bias_.data(),
                    .norm = norm_.data(),
                    .eps = eps_,
                    .cos_sin = step.rope->cos_sin,
                    .entries = entries,
                    .state = state,
                    .slots = step.batch.state_slots,
                    .sequences = paged(step)});
}

CompressedAttention::CompressedAttention(const Weights& w, const CompressedAttentionSpec& s, int hidden) : spec_(s) {
  const int heads_per_group = s.heads / s.groups;
  const std::optional<RowRange> part = even_part(w.context().ranks, s.groups);
  const RowRange groups = part.value_or(RowRange{0, s.groups});
  const RowRange heads = scaled(groups, heads_per_group);
  Linear::Split queries, results;
  if (part) {
    queries.outputs = {scaled(heads, s.head_dim)};
    results.inputs = scaled(groups, s.out_rank);
  }
  in_ = Linear(w, {{"wq_a", s.q_rank}, {"wkv", s.head_dim}}, hidden, false);
  q_norm_ = Norm(w, "q_norm", s.q_rank, s.norm);
  kv_norm_ = Norm(w, key_norm(w), s.head_dim, s.norm);
  q_b_ = Linear(w, {{"wq_b", int64_t{s.heads} * s.head_dim}}, s.q_rank, false, queries);
  std::vector<RowRange> kept;
  if (part) kept = {heads};
  sinks_ = Vector(w.context(), picked(w.vector("attn_sink", s.heads), kept));
  spec_.heads = static_cast<int>(heads.count), spec_.groups = static_cast<int>(groups.count);
  load_groups(w, groups, s.groups);
  out_ = Linear(w, {{"wo_b", hidden}}, int64_t{s.groups} * s.out_rank, false, results);
  w.context().note_attention(spec_.heads, s.head_dim);
  if (!compresses()) return;
  compressor_ = Compressor(w / "compressor", s.compressor, s.head_dim, s.norm, hidden);
  if (!selects()) return;
  const CompressorSpec& index = s.compressor;
  const Weights indexer = w / "indexer";
  index_compressor_ = Compressor(indexer / "compressor", index, index.index_dim, s.norm, hidden);
  index_q_ = Linear(indexer, {{"wq_b", int64_t{index.index_heads} * index.index_dim}}, s.q_rank, false);
  index_weights_ = Linear(indexer, {{"weights_proj", index.index_heads}}, hidden, false);
}

void CompressedAttention::load_groups(const Weights& w, RowRange groups, int all) {
  LoadContext& context = w.context();
  const int64_t outputs = spec_.out_rank, inputs = int64_t{spec_.heads} / spec_.groups * spec_.head_dim;
  const TensorEntry* entry = (w / "wo_a").tensor("weight", {all * outputs, inputs}, Weights::Stored::kAnyWay);
  groups_ = StackedLinear(context, entry != nullptr ? entry->dtype : context.dtype, spec_.groups, outputs, inputs);
  if (entry == nullptr || !context.packs()) return;
  for (int i = 0; i < spec_.groups; ++i) {
    Buffer memory;
    int64_t row = 0;
    const int64_t first = (groups.begin + i) * outputs;
    for (const Tensor& rows : entry->rows_in_memory(first, outputs, context.queue.threads(), memory)) {
      groups_.pack(context, i, row, rows);
      row += rows.rows();
    }
  }
}

std::optional<KvShape> CompressedAttention::kv_shape() const {
  KvShape shape{.kv_heads = 1, .head_dim = spec_.head_dim, .value_dim = 0, .window = spec_.window};
  if (!compresses()) return shape;
  shape.value_dim = static_cast<int>(ops::EntryCache::elements_per_token(entry_stride(), spec_.compressor.rate));
  shape.window = 0;  // all entries are read
  shape.entries = true;
  return shape;
}

int64_t CompressedAttention::floats_per_token() const {
  const CompressedAttentionSpec& s = spec_;
  const CompressorSpec& index = s.compressor;
  int64_t entries = std::max(compressor_.floats_per_token(), index_compressor_.floats_per_token());
  if (selects()) entries += index.index_top_k + int64_t{index.index_heads} * (index.index_dim + 1);
  const int64_t results = int64_t{s.heads} * s.head_dim + int64_t{s.groups} * s.out_rank;
  return s.q_rank + s.head_dim + int64_t{s.heads} * s.head_dim + entries + results;
}

Tensor CompressedAttention::make_entries(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x,
                                         const Tensor& q_latent, const ops::EntryCache& entries) const {
  compressor_(c, step, x, step.state.slice_columns(0, compressor_.state_values()), entries);
  if (!selects()) return {};
  const CompressorSpec& s = spec_.compressor;
  ops::EntryCache keys = entries;
  keys.first = spec_.head_dim, keys.dim = s.index_dim;
  index_compressor_(c, step, x, step.state.slice_columns(compressor_.state_values(), index_compressor_.state_values()),
                    keys);
  const Tensor selected = c.arena.take(&kInt32, {x.rows(), s.index_top_k});
  Arena::Scope scope(c.arena);
  const Tensor q = index_q_(c, q_latent);
  ops::rotate(c, {.x = q, .dim = s.index_dim, .cos_sin = step.rope->cos_sin, .positions = step.rope->rows});
  ops::select_entries(
      c, {.selected = selected, .q = q, .weights = index_weights_(c, x), .entries = keys, .sequences = paged(step)});
  return selected;
}

void CompressedAttention::with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                                    bool accumulate, const NextNorm* next) const {
  const CompressedAttentionSpec& s = spec_;
  const int64_t tokens = x.rows(), width = int64_t{s.heads} * s.head_dim;
  const auto rotate = [&](const Tensor& rows, bool backward) {
    ops::rotate(c, {.x = rows,
                    .dim = s.head_dim,
                    .cos_sin = step.rope->cos_sin,
                    .positions = step.rope->rows,
                    .backward = backward});
  };
  const Tensor projected = in_(c, x);
  const Tensor q_latent = projected.slice_columns(0, s.q_rank), key = projected.slice_columns(s.q_rank, s.head_dim);
  q_norm_.in_place(c, q_latent);
  kv_norm_.in_place(c, key);
  rotate(key, false);
  ops::store_keys(c, {.x = key, .k_cache = step.kv->k, .slots = step.slots()});

  const Tensor q = q_b_(c, q_latent);
  ops::rms_norm(c, by_heads(q, s.heads), by_heads(q, s.heads), nullptr, s.norm.eps);
  rotate(q, false);

  ops::EntryCache entries;
  Tensor selected;
  if (compresses()) {
    entries = {.cache = step.kv->v, .stride = entry_stride(), .dim = s.head_dim, .rate = s.compressor.rate};
    selected = make_entries(c, step, x, q_latent, entries);
  }
  const Tensor mixed = c.arena.take(&kFloat32, {tokens, width});
  ops::entry_attention(c, {.out = mixed,
                           .q = q,
                           .k_cache = step.kv->k,
                           .heads = s.heads,
                           .window = s.window,
                           .scale = s.scale,
                           .sinks = sinks_.data(),
                           .entries = entries,
                           .selected = selected,
                           .sequences = paged(step)});
  rotate(mixed, true);
  const Tensor grouped = c.arena.take(&kFloat32, {tokens, int64_t{s.groups} * s.out_rank});
  groups_.heads(c, grouped, s.out_rank, mixed, width / s.groups);
  out_.into(c, out, grouped, accumulate, next);
}

}  // namespace sluice
