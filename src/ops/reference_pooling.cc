// Reference of pooling a sequence's rows to one vector. Columns are independent; sums add rows in ascending order in
// double precision.
#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

// Pools the column `x` over the rows [begin, end).
float pool_column(Pooling pooling, const float* x, int64_t stride, int64_t begin, int64_t end) {
  const auto rows = static_cast<double>(end - begin);
  double sum = 0;
  switch (pooling) {
    case Pooling::kFirst:
      return x[begin * stride];
    case Pooling::kLast:
      return x[(end - 1) * stride];
    case Pooling::kMax: {
      float most = x[begin * stride];
      for (int64_t row = begin; row < end; ++row) most = std::max(most, x[row * stride]);
      return most;
    }
    case Pooling::kWeightedMean:
      for (int64_t row = begin; row < end; ++row) sum += static_cast<double>(row - begin + 1) * x[row * stride];
      return static_cast<float>(sum / (rows * (rows + 1) / 2));
    case Pooling::kMean:
    case Pooling::kMeanSqrtLength:
      for (int64_t row = begin; row < end; ++row) sum += x[row * stride];
      return static_cast<float>(sum / (pooling == Pooling::kMean ? rows : std::sqrt(rows)));
  }
  CHECK(false, "pooling {}", static_cast<int>(pooling));
}

}  // namespace

void pooling(Queue& queue, const PoolingArgs& args) {
  constexpr int64_t kColumns = 16;  // columns of a row that are read together
  const int64_t columns = args.x.shape[1], pieces = (columns + kColumns - 1) / kColumns;
  queue.threads().parallel_for(args.out.rows() * pieces, 4, [&](int64_t item, int64_t end) {
    for (; item < end; ++item) {
      const int64_t sequence = item / pieces, first = item % pieces * kColumns;
      for (int64_t i = first; i < std::min(columns, first + kColumns); ++i) {
        args.out.f32()[sequence * args.out.row_stride + i] =
            pool_column(args.pooling, args.x.f32() + i, args.x.row_stride, args.query_start[sequence],
                        args.query_start[sequence + 1]);
      }
    }
  });
}

void sum_rows(Queue&, const SumRowsArgs& args) {
  const Sequences& s = args.sequences;
  for (size_t i = 0; i < s.kv_len.size(); ++i) {
    double* sums = args.sums.as<double>() + s.slots[i] * args.sums.row_stride;
    const int32_t begin = s.query_start[i], end = s.query_start[i + 1];
    if (begin == end) continue;
    if (s.kv_len[i] == end - begin) std::fill_n(sums, args.sums.shape[1], 0.0);
    for (int32_t row = begin; row < end; ++row) {
      const float* x = args.x.f32() + row * args.x.row_stride;
      for (int64_t column = 0; column < args.x.shape[1]; ++column) sums[column] += x[column];
    }
  }
}

}  // namespace sluice::ops::reference
