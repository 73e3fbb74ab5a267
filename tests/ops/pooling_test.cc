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

class SumRowsTest : public OpsTest {
 protected:
  // Adds up x, whose sequences have these lengths, in steps of at most `chunk` rows of a sequence. A sequence's slot is
  // in the opposite order.
  void add_up(const Owned& sums, const Owned& x, const std::vector<int32_t>& lengths, int chunk) {
    const auto count = static_cast<int>(lengths.size());
    std::vector<int32_t> done(lengths.size(), 0);
    for (bool more = true; std::exchange(more, false);) {
      std::vector<int32_t> starts = {0}, kv_len, slots;
      std::vector<int64_t> rows;
      for (int s = 0, first = 0; s < count; first += lengths[s++]) {
        const int step = std::min(chunk, lengths[s] - done[s]);
        for (int i = 0; i < step; ++i) rows.push_back(first + done[s] + i);
        done[s] += step;
        more |= step > 0;
        starts.push_back(static_cast<int32_t>(rows.size())), kv_len.push_back(std::max(done[s], 1));
        slots.push_back(count - 1 - s);
      }
      if (!more) return;
      Owned step(&kFloat32, {static_cast<int64_t>(rows.size()), x->shape[1]}, 5);
      for (size_t i = 0; i < rows.size(); ++i) {
        std::copy_n(x.row(rows[i]), x->shape[1], step.row(static_cast<int64_t>(i)));
      }
      sum_rows(device.ctx,
               {.sums = sums, .x = step, .sequences = {.query_start = starts, .kv_len = kv_len, .slots = slots}});
    }
  }
};

TEST_P(SumRowsTest, AddsInOrderWhateverTheSteps) {
  const std::vector<int32_t> lengths = {1, 7, 33, 2};
  for (const int64_t columns : {1, 7, 256, 301}) {
    Owned x(&kFloat32, {43, columns}, 3), sums(&kFloat64, {5, columns}, 2);
    x.fill(random);
    for (const int chunk : {100, 10, 1}) {
      SCOPED_TRACE(fmt::format("{} columns, chunks of {}", columns, chunk));
      std::fill_n(sums->as<double>(), 5 * (columns + 2), 8.5);
      add_up(sums, x, lengths, chunk);
      for (int s = 0, first = 0; s < 4; first += lengths[static_cast<size_t>(s++)]) {
        const double* own = sums->as<double>() + (3 - s) * sums->row_stride;
        for (int64_t column = 0; column < columns; ++column) {
          double sum = 0;
          for (int row = first; row < first + lengths[static_cast<size_t>(s)]; ++row) sum += x.row(row)[column];
          ASSERT_EQ(own[column], sum) << "sequence " << s << " column " << column;
        }
        EXPECT_EQ(own[columns], 8.5) << "written beyond the columns";
      }
      EXPECT_EQ(sums->as<double>()[4 * sums->row_stride], 8.5) << "a slot that no sequence owns";
    }
  }
}

SLUICE_FOR_EVERY_KERNEL(SumRowsTest, &OpTable::sum_rows);

}  // namespace
}  // namespace sluice::ops::pooling_test
