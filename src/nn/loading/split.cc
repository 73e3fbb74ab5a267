// Divides sizes, ranges and small tensors between ranks.
#include "nn/loading/split.h"

#include <algorithm>
#include <numeric>

namespace sluice {

std::optional<RowRange> even_part(const Ranks& ranks, int64_t total) {
  if (!ranks.many() || total % ranks.size != 0) return std::nullopt;
  const Share share = ranks.share(total);
  return RowRange{share.begin, share.count};
}

std::optional<RowRange> grouped_part(const Ranks& ranks, int64_t total, int64_t unit, bool even) {
  if (!ranks.many() || total % unit != 0) return std::nullopt;
  const int64_t groups = total / unit;
  if (groups < ranks.size || (even && groups % ranks.size != 0)) return std::nullopt;
  const Share share = ranks.share(groups);
  return RowRange{share.begin * unit, share.count * unit};
}

std::vector<float> picked(std::vector<float> values, const std::vector<RowRange>& kept) {
  if (kept.empty() || values.empty()) return values;
  std::vector<float> out;
  for (const RowRange& range : kept) {
    CHECK(range.begin >= 0 && range.begin + range.count <= static_cast<int64_t>(values.size()), "{} of {} from {}",
          range.count, values.size(), range.begin);
    out.insert(out.end(), values.begin() + range.begin, values.begin() + range.begin + range.count);
  }
  return out;
}

std::vector<RowRange> cut_rows(const std::vector<RowRange>& rows, int64_t begin, int64_t end) {
  std::vector<RowRange> out;
  int64_t first = 0;  // output of the current range's first row
  for (const RowRange& range : rows) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + range.count);
    if (from < to) out.push_back({range.begin + from - first, to - from});
    first += range.count;
  }
  return out;
}

int64_t column_unit(const TensorEntry* entry, DType stored) {
  int64_t unit = stored->block_size;
  if (entry == nullptr) return unit;
  unit = std::lcm(unit, int64_t{entry->dtype->block_size});
  for (const Tensor& piece : entry->pieces) unit = std::lcm(unit, int64_t{piece.dtype->block_size});
  return unit;
}

}  // namespace sluice
