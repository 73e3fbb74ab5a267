// Pooling of every backend. Compares with plain sums over random odd shapes. Checks that other sequences do not change
// a sequence's bits.
#include "ops/testing.h"

namespace sluice::ops::pooling_test {
namespace {

constexpr Pooling kAll[] = {Pooling::kFirst,        Pooling::kLast, Pooling::kMean,
                            Pooling::kWeightedMean, Pooling::kMax,  Pooling::kMeanSqrtLength};

double expected(Pooling pooling, const Owned& x, int64_t begin, int64_t end, int64_t column) {
  double sum = 0, weighted = 0, weights = 0, most = -INFINITY;
  for (int64_t row = begin; row < end; ++row) {
    const double value = x.row(row)[column], weight = static_cast<double>(row - begin + 1);
    sum += value, weighted += weight * value, weights += weight, most = std::max(most, value);
  }
  const auto rows = static_cast<double>(end - begin);
  switch (pooling) {
    case Pooling::kFirst:
      return x.row(begin)[column];
    case Pooling::kLast:
      return x.row(end - 1)[column];
    case Pooling::kMean:
      return sum / rows;
    case Pooling::kWeightedMean:
      return weighted / weights;
    case Pooling::kMax:
      return most;
    case Pooling::kMeanSqrtLength:
      return sum / std::sqrt(rows);
  }
  return NAN;
}

class PoolingTest : public OpsTest {};

TEST_P(PoolingTest, IsWhatItsNameSays) {
  for (const int columns : {1, 7, 16, 100}) {
    const std::vector<int32_t> start = {0, 1, 8, 41, 43};
    Owned x(&kFloat32, {start.back(), columns}, 3), out(&kFloat32, {4, columns}, 5);
    x.fill(random);
    for (const Pooling pooling : kAll) {
      ops::pooling(device.ctx, {.out = out, .x = x, .query_start = start, .pooling = pooling});
      for (int s = 0; s < 4; ++s) {
        for (int i = 0; i < columns; ++i) {
          const double want = expected(pooling, x, start[s], start[s + 1], i);
          EXPECT_NEAR(out.row(s)[i], want, 1e-6) << "pooling " << static_cast<int>(pooling) << ", sequence " << s;
        }
      }
    }
  }
}

TEST_P(PoolingTest, SequencesKeepTheirBits) {
  constexpr int kRows = 57, kColumns = 33;
  Owned x(&kFloat32, {kRows + 20, kColumns}), together(&kFloat32, {2, kColumns}), alone(&kFloat32, {1, kColumns});
  x.fill(random);
  const std::vector<int32_t> both = {0, 20, kRows + 20}, one = {0, kRows};
  for (const Pooling pooling : kAll) {
    ops::pooling(device.ctx, {.out = together, .x = x, .query_start = both, .pooling = pooling});
    ops::pooling(device.ctx, {.out = alone, .x = x->slice_rows(20, kRows), .query_start = one, .pooling = pooling});
    EXPECT_TRUE(same_bits(together.row(1), alone.row(0), kColumns)) << static_cast<int>(pooling);
  }
}

SLUICE_FOR_EVERY_KERNEL(PoolingTest, &OpTable::pooling);

}  // namespace
}  // namespace sluice::ops::pooling_test
