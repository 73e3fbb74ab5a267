// Pools the rows of every sequence into one vector. A thread owns a column of a sequence and reads its rows in
// ascending order, with sums in double precision as the op requires. Bound by reading the rows once; neighbouring
// threads read neighbouring columns.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

// Pools column `x` of `rows` rows.
__device__ float pool_column(ops::Pooling pooling, const float* x, int64_t stride, int64_t rows) {
  if (pooling == ops::Pooling::kFirst) return x[0];
  if (pooling == ops::Pooling::kLast) return x[(rows - 1) * stride];
  if (pooling == ops::Pooling::kMax) {
    float most = x[0];
    for (int64_t row = 1; row < rows; ++row) most = most < x[row * stride] ? x[row * stride] : most;
    return most;
  }
  const bool weighted = pooling == ops::Pooling::kWeightedMean;
  const auto count = static_cast<double>(rows);
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += (weighted ? static_cast<double>(row + 1) : 1.0) * x[row * stride];
  if (weighted) return static_cast<float>(sum / (count * (count + 1) / 2));
  return static_cast<float>(sum / (pooling == ops::Pooling::kMean ? count : sqrt(count)));
}

// Grid: (columns, sequences).
__global__ void __launch_bounds__(kThreads)
    pool_rows(float* out, int64_t out_stride, const float* x, int64_t x_stride, int64_t columns,
              const int32_t* query_start, ops::Pooling pooling) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= columns) return;
  const int sequence = blockIdx.y;
  const int64_t begin = query_start[sequence], rows = query_start[sequence + 1] - begin;
  out[sequence * out_stride + column] = pool_column(pooling, x + begin * x_stride + column, x_stride, rows);
}

}  // namespace

void pooling(const Launch& l, const ops::PoolingArgs& args, const int32_t* query_start) {
  if (args.out.rows() == 0 || args.x.shape[1] == 0) return;
  const dim3 grid(static_cast<unsigned>(pieces(args.x.shape[1], kThreads)), static_cast<unsigned>(args.out.rows()));
  pool_rows<<<grid, kThreads, 0, l.stream>>>(args.out.f32(), args.out.row_stride, args.x.f32(), args.x.row_stride,
                                             args.x.shape[1], query_start, args.pooling);
  check_launch("pooling");
}

}  // namespace sluice::cuda
