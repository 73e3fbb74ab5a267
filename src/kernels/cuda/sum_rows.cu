// Sums of the rows of sequences. A thread owns a column of a sequence and adds its rows in ascending order, in double
// precision. Bound by reading the rows once; neighbouring threads read neighbouring columns.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

// Grid: (columns, sequences).
__global__ void __launch_bounds__(kThreads)
    add_rows(double* sums, int64_t sums_stride, const float* x, int64_t x_stride, int64_t columns,
             const int32_t* query_start, const int32_t* kv_len, const int32_t* slots) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int sequence = blockIdx.y, begin = query_start[sequence], end = query_start[sequence + 1];
  if (column >= columns || begin == end) return;
  double& slot = sums[slots[sequence] * sums_stride + column];
  double sum = kv_len[sequence] == end - begin ? 0.0 : slot;
  for (int64_t row = begin; row < end; ++row) sum += x[row * x_stride + column];
  slot = sum;
}

}  // namespace

void sum_rows(const Launch& l, const ops::SumRowsArgs& args) {
  const ops::Sequences& s = args.sequences;
  if (s.kv_len.empty() || args.x.shape[1] == 0) return;
  const dim3 grid(static_cast<unsigned>(pieces(args.x.shape[1], kThreads)), static_cast<unsigned>(s.kv_len.size()));
  add_rows<<<grid, kThreads, 0, l.stream>>>(args.sums.as<double>(), args.sums.row_stride, args.x.f32(),
                                            args.x.row_stride, args.x.shape[1], on_device(l, s.query_start),
                                            on_device(l, s.kv_len), on_device(l, s.slots));
  check_launch("sum_rows");
}

}  // namespace sluice::cuda
