// Low-rank changes by adapters. One warp makes one number: first the inner values of a row, then its outputs. Bound by
// reading the matrices of the adapters once for each row that has them; rows of one adapter find them in L2.
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;

__device__ float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ float warp_dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) sum += a[i] * b[i];
  return warp_sum(sum);
}

// Grid: (pieces of the inner values, rows).
__global__ void __launch_bounds__(kThreads)
    shrink(const __grid_constant__ ops::LoraWeight w, float* inner, int64_t inner_stride, const float* x,
           int64_t x_stride, const int32_t* slots) {
  const int64_t row = blockIdx.y, slot = slots[row];
  const int64_t values = int64_t{w.parts} * w.rank, j = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (slot < 0 || j >= values) return;
  const float sum = warp_dot(w.a + (slot * values + j) * w.k, x + row * x_stride, w.k);
  if (threadIdx.x % kWarp == 0) inner[row * inner_stride + j] = w.scales[slot * w.parts + j / w.rank] * sum;
}

// Grid: (pieces of the outputs, rows). A thread makes one output.
__global__ void __launch_bounds__(kThreads)
    expand(const __grid_constant__ ops::LoraWeight w, float* out, int64_t out_stride, const float* inner,
           int64_t inner_stride, const int32_t* slots) {
  const int64_t row = blockIdx.y, slot = slots[row], o = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot < 0 || o >= w.n) return;
  int part = 0;
  while (o >= w.part_ends[part]) ++part;
  const float *b = w.b + (slot * w.n + o) * w.rank, *from = inner + row * inner_stride + int64_t{part} * w.rank;
  float sum = 0;
  for (int j = 0; j < w.rank; ++j) sum += b[j] * from[j];
  out[row * out_stride + o] += sum;
}

}  // namespace

void lora(const Launch& l, const ops::LoraArgs& args, const int32_t* slots) {
  const ops::LoraWeight& w = *args.weight;
  constexpr int64_t kMostRows = 65535;  // of a grid's second dimension
  const auto rows = static_cast<int64_t>(args.slots.size());
  for (int64_t first = 0; first < rows; first += kMostRows) {
    const auto count = static_cast<unsigned>(std::min(kMostRows, rows - first));
    const Tensor x = args.x.slice_rows(first, count), out = args.out.slice_rows(first, count);
    const Tensor inner = args.inner.slice_rows(first, count);
    shrink<<<dim3(static_cast<unsigned>(pieces(w.inner(), kWarps)), count), kThreads, 0, l.stream>>>(
        w, inner.f32(), inner.row_stride, x.f32(), x.row_stride, slots + first);
    check_launch("lora (shrink)");
    expand<<<dim3(static_cast<unsigned>(pieces(w.n, kThreads)), count), kThreads, 0, l.stream>>>(
        w, out.f32(), out.row_stride, inner.f32(), inner.row_stride, slots + first);
    check_launch("lora (expand)");
  }
}

}  // namespace sluice::cuda
