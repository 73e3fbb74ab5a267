// The checked call of the op that selects entries.
#include "ops/entries.h"

#include "ops/checks.h"

namespace sluice::ops {

void check_entries(const EntryCache& e) {
  CHECK(e.cache.shape.rank() == 4 && e.cache.dense() && e.cache.shape[1] == 1, "entries {}", e.cache.shape.str());
  CHECK(e.rate > 0 && e.first >= 0 && e.dim > 0 && e.first + e.dim <= e.stride, "entries of {} from {} in {}", e.dim,
        e.first, e.stride);
  CHECK(e.cache.shape[2] % 8 == 0 && e.cache.shape[3] >= EntryCache::elements_per_token(e.stride, e.rate),
        "{} elements per token", e.cache.shape[3]);
  const bool vectors = e.rate == 1 && e.dim == e.cache.shape[3];
  CHECK(e.cache.dtype != &kInt8 || (vectors && e.cache.scales != nullptr), "entries of int8 that are no vectors");
}

void check_paged(const PagedSequences& s, int64_t tokens, int64_t block_size) {
  CHECK(s.query_start.size() == s.kv_len.size() + 1 && s.query_start[0] == 0 && s.query_start.back() == tokens);
  CHECK(s.block_table.size() >= s.kv_len.size() * static_cast<size_t>(s.block_table_stride));
  for (size_t i = 0; i < s.kv_len.size(); ++i) {
    const int rows = s.query_start[i + 1] - s.query_start[i];
    CHECK(rows >= 0 && s.kv_len[i] >= rows, "sequence {}: {} rows, kv_len {}", i, rows, s.kv_len[i]);
    CHECK(s.kv_len[i] <= s.block_table_stride * block_size, "kv_len {} in {} blocks", s.kv_len[i],
          s.block_table_stride);
  }
}

void select_entries(Ctx& ctx, const SelectEntriesArgs& args) {
  check_entries(args.entries);
  check_matrix(args.weights, "weights", -1, -1);
  const int64_t tokens = args.weights.shape[0];
  check_matrix(args.q, "q", tokens, args.weights.shape[1] * args.entries.dim);
  CHECK(args.selected.shape.rank() == 2 && args.selected.shape[0] == tokens && args.selected.shape[1] > 0);
  check_list(args.selected, "selected", args.selected.shape.elements());
  check_paged(args.sequences, tokens, args.entries.cache.shape[2]);
  CHECK(args.first >= 0, "first {}", args.first);
  ctx.ops.select_entries(ctx.queue, args);
}

}  // namespace sluice::ops
