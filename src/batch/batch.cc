// Spreads block numbers over groups, for callers without a block pool. Cuts batches into parts.
#include "batch/batch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice {

void spread_over(Batch& batch, std::span<const BlockGroup> groups, int block_size) {
  const std::vector<int32_t> slots = std::exchange(batch.slots, {});
  const std::vector<int32_t> table = std::exchange(batch.block_table, {});
  const auto count = static_cast<int32_t>(groups.size());
  for (int32_t group = 0; group < count; ++group) {
    const auto number = [&](int32_t block) { return (block * count + group) * groups[group].ids_per_block; };
    for (const int32_t slot : slots) {
      batch.slots.push_back(number(slot / block_size) * block_size + slot % block_size);
    }
    for (const int32_t block : table) batch.block_table.push_back(block < 0 ? block : number(block));
  }
}

namespace {

using List = std::vector<int32_t>;

List cut(const List& list, int64_t begin, int64_t end) {
  return list.empty() ? List() : List(list.begin() + begin, list.begin() + end);
}

// The rows [begin, end) of every one of the equal parts of a list.
List cut_each(const List& list, int64_t parts, int64_t begin, int64_t end) {
  List all;
  const int64_t length = static_cast<int64_t>(list.size()) / parts;
  for (int64_t at = 0; length > 0 && at < static_cast<int64_t>(list.size()); at += length) {
    all.insert(all.end(), list.begin() + at + begin, list.begin() + at + end);
  }
  return all;
}

// The batch of the rows [begin, end), without copies.
Batch rows_of(const Batch& batch, int begin, int end) {
  const auto sequence_at = [&](int row) {  // the sequence that the row belongs to
    const auto next = std::upper_bound(batch.query_start.begin(), batch.query_start.end(), row);
    return static_cast<int>(std::distance(batch.query_start.begin(), next)) - 1;
  };
  const int first = sequence_at(begin), last = sequence_at(end - 1) + 1;
  const int64_t groups = static_cast<int64_t>(batch.slots.size()) / batch.size();
  Batch part;
  part.tokens = cut(batch.tokens, begin, end);
  part.from_sample = cut(batch.from_sample, begin, end);
  part.positions = cut(batch.positions, begin, end);
  part.types = cut(batch.types, begin, end);
  part.slots = cut_each(batch.slots, groups, begin, end);
  part.kv_len = cut(batch.kv_len, first, last);
  part.kv_len.back() -= batch.query_start[last] - end;  // tokens of the last sequence that come later
  part.prompt_len = cut(batch.prompt_len, first, last);
  part.state_slots = cut(batch.state_slots, first, last);
  part.block_table_stride = batch.block_table_stride;
  part.wants_hidden = batch.wants_hidden;
  part.block_table = cut_each(batch.block_table, groups, int64_t{first} * batch.block_table_stride,
                              int64_t{last} * batch.block_table_stride);
  for (int sequence = first; sequence <= last; ++sequence) {
    part.query_start.push_back(std::clamp(batch.query_start[sequence], begin, end) - begin);
  }
  const auto low = std::lower_bound(batch.sample_rows.begin(), batch.sample_rows.end(), begin);
  const auto high = std::lower_bound(low, batch.sample_rows.end(), end);
  part.sample_rows.assign(low, high);
  for (int32_t& row : part.sample_rows) row -= begin;
  part.adapters = cut(batch.adapters, begin, end);
  for (const GivenRows& given : batch.given) {
    const int from = std::max(begin, given.row), to = std::min(end, given.row + given.count);
    if (from >= to) continue;
    const auto width = static_cast<int64_t>(given.values.size()) / given.count;
    part.given.push_back({.row = from - begin,
                          .count = to - from,
                          .values = given.values.subspan((from - given.row) * width, (to - from) * width),
                          .owner = given.owner});
  }
  part.sample_adapters = cut(batch.sample_adapters, low - batch.sample_rows.begin(), high - batch.sample_rows.begin());
  return part;
}

}  // namespace

std::vector<Batch> split(const Batch& batch, int parts, bool whole_sequences) {
  if (parts <= 1 || batch.size() <= 1) return {batch};
  std::vector<Batch> all;
  int begin = 0;
  for (int i = 1; i <= parts && begin < batch.size(); ++i) {
    auto end = static_cast<int>(int64_t{batch.size()} * i / parts);
    if (whole_sequences) end = *std::lower_bound(batch.query_start.begin(), batch.query_start.end(), end);
    if (end <= begin) continue;
    all.push_back(rows_of(batch, begin, end));
    begin = end;
  }
  all.front().copies = batch.copies;
  all.front().token_copies = batch.token_copies;
  all.front().state_copies = batch.state_copies;
  return all;
}

}  // namespace sluice
