// The division of layers between the stages of a pipeline, compared with all divisions.
#include "nn/loading/stage.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace sluice::stage_test {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The cost of the most expensive stage in the best division of the layers from `begin` on.
int64_t best(std::span<const int64_t> costs, int64_t last, const std::vector<bool>& cuts, size_t begin, int stages) {
  int64_t sum = 0, least = kNever;
  for (size_t end = begin + 1; end <= costs.size(); ++end) {
    sum += costs[end - 1];
    if (stages == 1) {
      if (end == costs.size()) least = sum + last;
    } else if (end < costs.size() && cuts[end]) {
      const int64_t rest = best(costs, last, cuts, end, stages - 1);
      if (rest != kNever) least = std::min(least, std::max(sum, rest));
    }
  }
  return least;
}

TEST(DivideLayers, IsTheBestDivision) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> costs(1 + random() % 9);
    std::vector<bool> cuts(costs.size());
    for (size_t i = 0; i < costs.size(); ++i)
      costs[i] = static_cast<int64_t>(random() % 10), cuts[i] = random() % 4 > 0;
    const auto last = static_cast<int64_t>(random() % 20);
    const int stages = static_cast<int>(1 + random() % 5);
    const int64_t want = best(costs, last, cuts, 0, stages);
    const std::vector<int> bounds = divide_layers(costs, last, cuts, stages);
    if (want == kNever) {
      EXPECT_TRUE(bounds.empty());
      continue;
    }
    ASSERT_EQ(bounds.size(), static_cast<size_t>(stages) + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), static_cast<int>(costs.size()));
    int64_t most = 0;
    for (int s = 0; s < stages; ++s) {
      ASSERT_LT(bounds[s], bounds[s + 1]);
      EXPECT_TRUE(s == 0 || cuts[bounds[s]]);
      int64_t sum = s == stages - 1 ? last : 0;
      for (int i = bounds[s]; i < bounds[s + 1]; ++i) sum += costs[i];
      most = std::max(most, sum);
    }
    EXPECT_EQ(most, want);
  }
}

}  // namespace
}  // namespace sluice::stage_test
