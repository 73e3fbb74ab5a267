// Tests the placement of experts on ranks: its properties on random loads, and small cases that are known.
#include "nn/moe/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace sluice::placement_test {
namespace {

struct Size {
  int experts, redundant, ranks;
};
constexpr Size kSizes[] = {{8, 0, 2},  {8, 2, 2}, {8, 8, 2}, {60, 4, 4}, {64, 0, 8},
                           {64, 8, 8}, {5, 1, 2}, {5, 5, 2}, {3, 9, 4},  {128, 0, 4}};

// Uniform, skewed as experts of trained models are, with idle experts, and with one expert that has almost all.
std::vector<int64_t> make_load(int experts, int kind, std::mt19937& random) {
  std::vector<int64_t> load;
  std::uniform_int_distribution<int> uniform(0, 1000);
  std::normal_distribution<double> normal;
  for (int e = 0; e < experts; ++e) {
    const int64_t value = kind == 0   ? uniform(random)
                          : kind == 1 ? static_cast<int64_t>(100 * std::exp(1.5 * normal(random)))
                          : kind == 2 ? (uniform(random) < 700 ? 0 : uniform(random))
                                      : (e == 0 ? 100000 : 1);
    load.push_back(value);
  }
  std::ranges::shuffle(load, random);
  return load;
}

double largest(const ExpertPlacement& placement, const std::vector<int64_t>& load) {
  return std::ranges::max(rank_loads(placement, load));
}

TEST(Placement, PlacesEveryExpertAndBalances) {
  std::mt19937 random(1);
  double sum_placed = 0, sum_in_order = 0;
  for (const Size& size : kSizes) {
    for (int kind = 0; kind < 4; ++kind) {
      for (int i = 0; i < 20; ++i) {
        const std::vector<int64_t> load = make_load(size.experts, kind, random);
        const int physical = size.experts + size.redundant;
        const ExpertPlacement placed = balanced_placement(load, physical, size.ranks);
        SCOPED_TRACE(::testing::Message()
                     << size.experts << " + " << size.redundant << " on " << size.ranks << ", kind " << kind);
        ASSERT_EQ(placed.experts.size(), static_cast<size_t>(physical));
        ASSERT_EQ(placed.per_rank() * size.ranks, physical);
        ASSERT_EQ(placement_problem(placed, size.experts), "");
        const std::vector<double> loads = rank_loads(placed, load);
        const double sum = std::accumulate(load.begin(), load.end(), 0.0);
        EXPECT_NEAR(std::accumulate(loads.begin(), loads.end(), 0.0), sum, 1e-6 * sum);
        if (size.experts % size.ranks != 0) continue;
        ExpertPlacement in_order{.ranks = size.ranks, .experts = std::vector<int32_t>(load.size())};
        std::iota(in_order.experts.begin(), in_order.experts.end(), 0);
        if (size.redundant == 0) {
          EXPECT_LE(largest(placed, load), largest(in_order, load));
        }
        if (sum == 0) continue;
        sum_placed += largest(placed, load) / sum;
        sum_in_order += largest(in_order, load) / sum;
      }
    }
  }
  EXPECT_LT(sum_placed, 0.85 * sum_in_order);
}

TEST(Placement, KeepsTheOrderWithoutLoads) {
  const ExpertPlacement placed = balanced_placement(std::vector<int64_t>(8, 0), 8, 2);
  EXPECT_EQ(placed.experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Placement, SeparatesTheTwoHeaviest) {
  const ExpertPlacement placed = balanced_placement(std::vector<int64_t>{100, 90, 1, 1}, 4, 2);
  EXPECT_NE(std::ranges::find(placed.experts, 0) - placed.experts.begin() < 2,
            std::ranges::find(placed.experts, 1) - placed.experts.begin() < 2);
}

TEST(Placement, RedundantExpertsAreTheHeaviest) {
  const std::vector<int64_t> load{10, 400, 10, 200, 10, 10};
  const ExpertPlacement placed = balanced_placement(load, 8, 2);
  EXPECT_EQ(std::ranges::count(placed.experts, 1), 2);
  EXPECT_EQ(std::ranges::count(placed.experts, 3), 2);
  EXPECT_EQ(largest(placed, load), 320);
}

// With as many redundant experts as are of use, each rank has all experts.
TEST(Placement, FullReplicationFillsEveryRank) {
  const std::vector<int64_t> load{5, 1, 7};
  const ExpertPlacement placed = balanced_placement(load, 12, 4);
  for (int r = 0; r < 4; ++r) {
    EXPECT_TRUE(std::ranges::equal(placed.on(r), std::vector<int32_t>{0, 1, 2})) << r;
  }
}

TEST(Placement, FewMovesKeepExpertsWhereTheyAre) {
  const ExpertPlacement now{.ranks = 2, .experts = {0, 1, 2, 3, 4, 5}};
  const ExpertPlacement wanted{.ranks = 2, .experts = {2, 3, 4, 0, 1, 5}};  // the ranks exchange 2 and 5
  const ExpertPlacement next = with_few_moves(wanted, now);
  EXPECT_EQ(next.experts, (std::vector<int32_t>{0, 1, 5, 3, 4, 2}));
  std::mt19937 random(2);
  for (int i = 0; i < 50; ++i) {
    const auto before = balanced_placement(make_load(60, 1, random), 64, 4);
    const auto after = balanced_placement(make_load(60, 1, random), 64, 4);
    const ExpertPlacement moved = with_few_moves(after, before);
    EXPECT_EQ(placement_problem(moved, 60), "");
    EXPECT_EQ(with_few_moves(before, before), before);
    std::vector<int32_t> a = after.experts, b = moved.experts;
    std::ranges::sort(a), std::ranges::sort(b);
    EXPECT_EQ(a, b);
  }
}

TEST(Placement, NamesWhatIsWrong) {
  const auto problem = [](std::vector<int32_t> experts) {
    return placement_problem({.ranks = 2, .experts = std::move(experts)}, 3);
  };
  EXPECT_EQ(problem({0, 1, 2, 0}), "");
  EXPECT_EQ(problem({0, 1, 3, 0}), "there is no expert 3 (expected 0 to 2)");
  EXPECT_EQ(problem({0, 1, 1, 0}), "expert 2 is on no rank");
  EXPECT_EQ(problem({0, 0, 1, 2}), "expert 0 is on rank 0 twice");
}

}  // namespace
}  // namespace sluice::placement_test
