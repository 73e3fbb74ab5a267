// Rounds rows to 8-bit floats for matmuls with weights of 8-bit floats, and gathers scales in the order of those
// matmuls. One block per row, or one warp per group of 128. Bound by memory traffic: reads x once and writes a quarter
// of it.
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {
namespace {

constexpr int kGroup = quant::Fp8::kElements;  // 128: four elements for every lane of a warp

// One block per row. Up to kHeld quads of a thread stay in registers; longer rows are read again.
template <class T>
__global__ void round_rows_kernel(uint32_t* to, float* scales, const T* x, const int32_t* x_rows, int64_t x_stride,
                                  int quads) {
  constexpr int kHeld = 4;
  __shared__ float scratch[kWarp + 1];
  wait_for_earlier();
  const T* row = x + row_of_x(x_rows, blockIdx.x) * x_stride;
  float4 held[kHeld];
  float largest = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    held[j] = i < quads ? load_four(row + 4 * i) : float4{};
    largest = fmaxf(largest, largest_of(held[j]));
  }
  for (int i = threadIdx.x + kHeld * blockDim.x; i < quads; i += blockDim.x) {
    largest = fmaxf(largest, largest_of(load_four(row + 4 * i)));
  }
  const Fp8Scale s = fp8_scale(block_max(largest, scratch));
  if (threadIdx.x == 0) scales[blockIdx.x] = s.scale;
  to += int64_t{blockIdx.x} * quads;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < quads) to[i] = pack_fp8(held[j], s.inverse);
  }
  for (int i = threadIdx.x + kHeld * blockDim.x; i < quads; i += blockDim.x) {
    to[i] = pack_fp8(load_four(row + 4 * i), s.inverse);
  }
}

// One warp per group of 128.
template <class T>
__global__ void round_groups_kernel(uint32_t* to, float* scales, const T* x, int64_t x_stride, int groups, int rows) {
  wait_for_earlier();
  const int lane = threadIdx.x % kWarp, warps = gridDim.x * (blockDim.x / kWarp);
  for (int at = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp; at < rows * groups; at += warps) {
    const int row = at / groups, group = at % groups;
    const float4 v = load_four(x + row * x_stride + group * kGroup + lane * 4);
    const Fp8Scale s = fp8_scale(warp_max(largest_of(v)));
    if (lane == 0) scales[int64_t{group} * rows + row] = s.scale;
    to[int64_t{at} * kWarp + lane] = pack_fp8(v, s.inverse);
  }
}

__global__ void gather_scales_kernel(float* to, const std::byte* weight, int64_t row_bytes, int64_t k, int n) {
  wait_for_earlier();
  const int groups = static_cast<int>(k / kGroup), step = gridDim.x * blockDim.x;
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < groups * n; at += step) {
    const int row = at % n, group = at / n;
    to[at] = reinterpret_cast<const float*>(weight + row * row_bytes + k)[group];
  }
}

template <class T>
void round_any(const Launch& l, std::byte* to, float* scales, const Tensor& x, bool groups, const int32_t* x_rows) {
  const int64_t rows = x.rows(), k = x.shape[1];
  auto* words = reinterpret_cast<uint32_t*>(to);
  if (groups) {
    constexpr int kThreads = 256;
    const unsigned blocks = blocks_for(l, rows * k / 4, kThreads);
    launch_pdl(l, "rounding to fp8", round_groups_kernel<T>, dim3(blocks), kThreads, 0, words, scales, x.as<const T>(),
               x.row_stride, static_cast<int>(k / kGroup), static_cast<int>(rows));
    return;
  }
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(pieces(k / 4, 4 * kWarp) * kWarp, kWarp, 1024));
  launch_pdl(l, "rounding to fp8", round_rows_kernel<T>, dim3(static_cast<unsigned>(rows)), threads, 0, words, scales,
             x.as<const T>(), x_rows, x.row_stride, static_cast<int>(k / 4));
}

}  // namespace

void round_to_fp8(const Launch& l, std::byte* to, float* scales, const Tensor& x, bool groups, const int32_t* x_rows) {
  CHECK(x_rows == nullptr || !groups, "rounding to fp8: x_rows cannot be combined with scales per group");
  CHECK(x.shape[1] % kGroup == 0 && x.row_stride % 4 == 0,
        "rounding to fp8: rows of {} elements with stride {} (expected multiples of 128 and 4)", x.shape[1],
        x.row_stride);
  if (x.dtype == &kFloat32) return round_any<float>(l, to, scales, x, groups, x_rows);
  CHECK(x.dtype == &kBFloat16, "rounding to fp8: {} is not supported (expected one of: float32, bfloat16)",
        x.dtype->name);
  round_any<__nv_bfloat16>(l, to, scales, x, groups, x_rows);
}

void gather_fp8_scales(const Launch& l, float* to, const std::byte* weight, int64_t n, int64_t k) {
  constexpr int kThreads = 256;
  launch_pdl(l, "gathering fp8 scales", gather_scales_kernel, dim3(blocks_for(l, n * (k / kGroup), kThreads)), kThreads,
             0, to, weight, fp8_row_bytes(k), k, static_cast<int>(n));
}

}  // namespace sluice::cuda
