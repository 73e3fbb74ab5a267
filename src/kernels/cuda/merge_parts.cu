// Merges the results of attention over several parts of the keys. One block per row and head. Bound by reading the
// parts once.
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    merge(float* out, int64_t out_stride, const float* x, int64_t x_stride, const float* log_sums, int64_t sums_stride,
          int parts, int dim, const float* sinks) {
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), heads = static_cast<int>(gridDim.y);
  const float* logs = log_sums + row * sums_stride + head;
  float top = sinks != nullptr ? sinks[head] : -INFINITY;
  for (int p = 0; p < parts; ++p) top = fmaxf(top, logs[p * heads]);
  float sum = sinks != nullptr ? expf(sinks[head] - top) : 0.0f;
  for (int p = 0; p < parts; ++p) sum += expf(logs[p * heads] - top);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kThreads) {
    float merged = 0.0f;
    for (int p = 0; p < parts; ++p) {
      merged += expf(logs[p * heads] - top) / sum * x[row * x_stride + (int64_t{p} * heads + head) * dim + d];
    }
    out[row * out_stride + int64_t{head} * dim + d] = merged;
  }
}

}  // namespace

void merge_parts(const Launch& l, const ops::MergePartsArgs& args) {
  const Tensor& out = args.out;
  if (out.shape.elements() == 0) return;
  const dim3 grid(static_cast<unsigned>(out.shape[0]), static_cast<unsigned>(args.heads));
  merge<<<grid, kThreads, 0, l.stream>>>(out.f32(), out.row_stride, args.x.f32(), args.x.row_stride,
                                         args.log_sums.f32(), args.log_sums.row_stride, args.parts,
                                         static_cast<int>(out.shape[1] / args.heads), args.sinks);
  check_launch("merged parts");
}

}  // namespace sluice::cuda
