// Keys and queries of the indexer, and the selection.
#include "nn/attention/token_indexer.h"

#include <algorithm>

#include "ops/entries.h"

namespace sluice {

bool TokenIndexerSpec::selects(const TokenMixerStep& step) const {
  const auto longer = [&](int32_t length) { return length - step.first > top_k; };
  return top_k > 0 && std::ranges::any_of(step.batch.kv_len, longer);
}

TokenIndexer::TokenIndexer(const Weights& w, const TokenIndexerSpec& s, int q_rank, int hidden)
    : spec_(s),
      queries_(w, {{"wq_b", int64_t{s.heads} * s.dim}}, q_rank, false),
      key_(w, {{"wk", s.dim}}, hidden, false),
      weights_(w, {{"weights_proj", s.heads}}, hidden, false),
      key_norm_(w, "k_norm", s.dim, {.kind = NormSpec::Kind::kLayer, .eps = 1e-6f, .bias = true}) {}

// Scores are compared only, so they are not scaled.
void TokenIndexer::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& q_latent) const {
  const TokenIndexerSpec& s = spec_;
  Arena::Scope scope(c.arena);
  const bool selects = s.selects(step);
  const Tensor key = key_(c, x);
  key_norm_.in_place(c, key);
  const Tensor q = selects ? queries_(c, q_latent) : key.slice_columns(0, 0);
  const ops::CacheTensor& keys = step.kv->v;
  ops::CacheTensor no_values = keys;
  no_values.shape = {keys.shape[0], keys.shape[1], keys.shape[2], 0}, no_values.row_stride = 0;
  ops::rope_store(c, {.q = q,
                      .k = key,
                      .v = key.slice_columns(0, 0),
                      .cos_sin = step.rope->cos_sin,
                      .interleaved = s.interleaved_rope,
                      .k_cache = keys,
                      .v_cache = no_values,
                      .positions = step.rope->rows,
                      .slots = step.slots()});
  if (!selects) return;
  const BatchView& batch = step.batch;
  ops::select_entries(c, {.selected = step.selected,
                          .q = q,
                          .weights = weights_(c, x),
                          .entries = ops::EntryCache::of_tokens(keys),
                          .sequences = {batch.query_start, batch.kv_len, step.block_table(), batch.block_table_stride},
                          .first = step.first});
}

}  // namespace sluice
