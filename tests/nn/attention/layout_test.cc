// Tests the order of rows in fused projections, and ALiBi slopes.
#include <gtest/gtest.h>

#include "nn/attention/attention.h"

namespace sluice::layout_test {
namespace {

std::vector<int64_t> rows_in_order(const std::vector<RowRange>& ranges) {
  std::vector<int64_t> rows;
  for (const RowRange& range : ranges) {
    for (int64_t i = 0; i < range.count; ++i) rows.push_back(range.begin + i);
  }
  return rows;
}

TEST(AttentionLayout, GroupsAreTakenApart) {
  // Two groups of two queries, a key and a value, of two rows each: q q k v | q q k v.
  AttentionSpec spec;
  spec.heads = 4, spec.kv_heads = 2, spec.head_dim = 2;
  EXPECT_EQ(rows_in_order(grouped_qkv_rows(spec)),
            (std::vector<int64_t>{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15}));
}

TEST(AttentionLayout, OneKeyPerHead) {
  AttentionSpec spec;
  spec.heads = spec.kv_heads = 2, spec.head_dim = 1;
  EXPECT_EQ(rows_in_order(grouped_qkv_rows(spec)), (std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
}

TEST(AlibiSlopes, PowersOfTwoAndOthers) {
  EXPECT_EQ(alibi_slopes(4), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  // Six heads have the slopes of four heads, then every second slope of eight.
  EXPECT_EQ(alibi_slopes(6), (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}));
}

}  // namespace
}  // namespace sluice::layout_test
