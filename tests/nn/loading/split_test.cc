// How sizes, ranges and small tensors are divided between ranks.
#include "nn/loading/split.h"

#include <gmock/gmock.h>

namespace sluice {

static bool operator==(const RowRange& a, const RowRange& b) { return a.begin == b.begin && a.count == b.count; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Split, EvenPartsOrEverything) {
  EXPECT_EQ(even_part({.rank = 1, .size = 4}, 12), (RowRange{3, 3}));
  EXPECT_EQ(even_part({.rank = 1, .size = 4}, 13), std::nullopt);
  EXPECT_EQ(even_part({.rank = 0, .size = 1}, 12), std::nullopt) << "one rank has all";
}

TEST(Split, GroupsStayTogether) {
  EXPECT_EQ(grouped_part({.rank = 0, .size = 2}, 96, 32, false), (RowRange{0, 32}));
  EXPECT_EQ(grouped_part({.rank = 1, .size = 2}, 96, 32, false), (RowRange{32, 64}));
  EXPECT_EQ(grouped_part({.rank = 1, .size = 2}, 96, 32, true), std::nullopt) << "three groups are not even";
  EXPECT_EQ(grouped_part({.rank = 1, .size = 4}, 96, 32, false), std::nullopt) << "fewer groups than ranks";
  EXPECT_EQ(grouped_part({.rank = 1, .size = 2}, 100, 32, false), std::nullopt);
}

TEST(Split, RowsInOutputOrder) {
  const std::vector<RowRange> rows = {{10, 4}, {0, 4}, {20, 4}};  // outputs 0 to 11
  EXPECT_THAT(cut_rows(rows, 2, 9), ElementsAre(RowRange{12, 2}, RowRange{0, 4}, RowRange{20, 1}));
  EXPECT_THAT(cut_rows(rows, 4, 8), ElementsAre(RowRange{0, 4}));
  EXPECT_THAT(cut_rows(rows, 12, 15), IsEmpty());
}

TEST(Split, ElementsOfKeptRanges) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  EXPECT_THAT(picked(values, {{1, 2}, {5, 1}}), ElementsAre(1, 2, 5));
  EXPECT_EQ(picked(values, {}), values);
  EXPECT_THAT(picked({}, {{1, 2}}), IsEmpty()) << "a dry run has no values";
  EXPECT_EQ(scaled({1, 2}, 3, 100), (RowRange{103, 6}));
}

}  // namespace
}  // namespace sluice
