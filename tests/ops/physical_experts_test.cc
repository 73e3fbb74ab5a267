// Tests that entries get physical experts of their experts, spread over several, and that they are counted.
#include "ops/physical_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/device.h"

namespace sluice::physical_experts_test {
namespace {

TEST(PhysicalExperts, SpreadsEntriesAndCountsThem) {
  ThreadPool pool(1, /*pin=*/false);
  const auto queue = ops::select_backend("reference").open(0).make_queue(pool);
  Arena arena(1 << 20, host_memory());
  ops::Ctx c(*queue, arena);
  constexpr int kRows = 4000;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(kRows * 3);
  for (float& value : logits) value = normal(random);
  std::vector<int32_t> chosen;
  for (int i = 0; i < kRows; ++i) chosen.insert(chosen.end(), {i % 2, 2});
  const std::vector<int32_t> first{0, 3, 4, 5}, physical{0, 2, 4, 3, 1};  // expert 0 has three
  std::vector<int64_t> counts(5, 0);
  std::vector<int32_t> placed = chosen;
  const auto place = [&](std::vector<int32_t>& entries, int64_t from, int64_t rows) {
    ops::choose_physical(c, {.experts = Tensor(entries.data() + 2 * from, &kInt32, {rows, 2}),
                             .logits = Tensor(logits.data() + 3 * from, &kFloat32, {rows, 3}),
                             .first = first,
                             .physical = physical,
                             .counts = counts});
  };
  place(placed, 0, kRows);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto begin = physical.begin() + first[static_cast<size_t>(chosen[i])];
    const auto end = physical.begin() + first[static_cast<size_t>(chosen[i]) + 1];
    EXPECT_NE(std::find(begin, end, placed[i]), end) << placed[i] << " of expert " << chosen[i];
  }
  EXPECT_EQ(counts[3], kRows / 2);
  EXPECT_EQ(counts[1], kRows);
  for (const int i : {0, 2, 4}) EXPECT_NEAR(static_cast<double>(counts[static_cast<size_t>(i)]), kRows / 6.0, 100) << i;
  std::vector<int32_t> alone = chosen;  // the choice does not depend on the rows beside it
  for (int64_t row = 0; row < kRows; ++row) place(alone, row, 1);
  EXPECT_EQ(alone, placed);
}

}  // namespace
}  // namespace sluice::physical_experts_test
