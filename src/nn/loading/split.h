// How layers are divided between ranks (tensor parallelism, Shoeybi et al. 2019, arXiv:1909.08053). The first
// projection of a layer is divided by its outputs (heads, channels), the last one by its inputs, and the ranks' results
// are added up. A layer divides itself when it is constructed: it keeps the part of LoadContext::ranks. A layer that
// cannot be divided is computed whole by every rank, with equal results.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lora/sites.h"
#include "nn/loading/weights.h"
#include "parallel/communicator.h"

namespace sluice {

// The part of `total` equal things that this rank has; nullopt if it has all, because there is one rank or because the
// ranks do not divide them evenly.
std::optional<RowRange> even_part(const Ranks& ranks, int64_t total);

// The same in groups of `unit` that must stay together. Parts may differ by one group; nullopt if there are fewer
// groups than ranks. `even`: the parts must be equal.
std::optional<RowRange> grouped_part(const Ranks& ranks, int64_t total, int64_t unit, bool even);

// The range, counted in things that are `width` items wide each, and after `first` items.
constexpr RowRange scaled(RowRange range, int64_t width, int64_t first = 0) {
  return {first + range.begin * width, range.count * width};
}

// The elements of the kept ranges, or all if there are none. An empty vector (a dry run) stays empty.
std::vector<float> picked(std::vector<float> values, const std::vector<RowRange>& kept);

// Returns what is left of `rows` (ranges of a stored matrix, in output order) if only the outputs [begin, end) are
// kept.
std::vector<RowRange> cut_rows(const std::vector<RowRange>& rows, int64_t begin, int64_t end);

// The fewest columns of a matrix of the checkpoint that can be cut off: those of a block, as it is stored there and as
// it will be stored here. `entry` may be null.
int64_t column_unit(const TensorEntry* entry, DType stored);

// Runs body(rows) on whole rows of which every rank has an even part of the columns, in place: for norms over all
// heads. Rows that are whole already are passed on.
template <class F>
void on_whole_rows(ops::Ctx& c, const Tensor& part, int64_t columns, F&& body) {
  if (part.shape[1] == columns) return body(part);
  Arena::Scope scope(c.arena);
  const Tensor whole = c.arena.take(&kFloat32, {part.shape[0], columns});
  ops::all_gather(c, whole, part);
  body(whole);
  const Share mine = share_of(columns, c.communicator->rank(), c.communicator->size());
  ops::copy(c, part, whole.slice_columns(mine.begin, mine.count));
}

}  // namespace sluice
