// Matmuls in fp32 whatever type the weights are stored in: the batch-invariant reference on the device, and the matmuls
// of fp32 models. A warp computes 4 outputs of 8 rows. Each lane adds up every 32nd input, then the lanes are added up,
// so the order of a sum depends on k alone. A block has 8 warps; weights are read again for every 8 rows.
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kOutputs = 4;  // of a warp
constexpr int kRows = 8;

template <class T>
struct Arguments {
  const T* weight;
  const float* x;
  float* out;
  const float* bias;
  const int32_t *starts, *x_rows;
  int64_t weight_step, bias_step, x_step, out_step;
  int64_t weight_stride, x_stride, out_stride;
  int rows, n, k;
  bool accumulate;
};

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) exact(const __grid_constant__ Arguments<T> a) {
  const int lane = threadIdx.x % kWarp, matrix = blockIdx.y;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kOutputs;
  if (first >= a.n) return;
  const int begin = a.starts != nullptr ? a.starts[matrix] : 0;
  const int end = a.starts != nullptr ? a.starts[matrix + 1] : a.rows;
  const T* w[kOutputs];
  for (int o = 0; o < kOutputs; ++o) {
    w[o] = a.weight + matrix * a.weight_step + min(first + o, int64_t{a.n} - 1) * a.weight_stride;
  }
  for (int row = begin + static_cast<int>(blockIdx.z) * kRows; row < end; row += gridDim.z * kRows) {
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r) {
      x[r] = a.x + row_of_x(a.x_rows, min(row + r, end - 1)) * a.x_stride + matrix * a.x_step;
    }
    float sums[kOutputs][kRows] = {};
#pragma unroll 4
    for (int i = lane; i < a.k; i += kWarp) {
      float weights[kOutputs];
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) weights[o] = to_f32(w[o][i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float value = x[r][i];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) sums[o][r] = fmaf(weights[o], value, sums[o][r]);
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = warp_sum(sums[o][r]);
        if (lane != o * kRows + r || row + r >= end || first + o >= a.n) continue;
        float& to = a.out[(row + r) * a.out_stride + matrix * a.out_step + first + o];
        const float biased = sum + (a.bias != nullptr ? a.bias[matrix * a.bias_step + first + o] : 0.0f);
        to = a.accumulate ? to + biased : biased;
      }
    }
  }
}

template <class T>
void run(const Launch& l, const MatmulProblem& p) {
  const Arguments<T> a{.weight = reinterpret_cast<const T*>(p.weight),
                       .x = p.x.f32(),
                       .out = p.out.f32(),
                       .bias = p.bias,
                       .starts = p.starts,
                       .x_rows = p.x_rows,
                       .weight_step = p.weight_rows * padded_k(p.k),
                       .bias_step = p.bias_step,
                       .x_step = p.x_columns,
                       .out_step = p.out_columns,
                       .weight_stride = padded_k(p.k),
                       .x_stride = p.x.row_stride,
                       .out_stride = p.out.row_stride,
                       .rows = static_cast<int>(p.x.rows()),
                       .n = static_cast<int>(p.n),
                       .k = static_cast<int>(p.k),
                       .accumulate = p.accumulate};
  const int64_t row_groups = std::min<int64_t>(pieces(p.x.rows(), kRows), 64);
  const dim3 grid(static_cast<unsigned>(pieces(p.n, kWarps * kOutputs)), static_cast<unsigned>(p.matrices),
                  static_cast<unsigned>(row_groups));
  exact<T><<<grid, kWarps * kWarp, 0, l.stream>>>(a);
  check_launch("exact matmul");
}

}  // namespace

void matmul_exact(const Launch& l, const MatmulProblem& p) {
  if (p.x.rows() == 0) return;
  if (p.type == &kFloat32) return run<float>(l, p);
  if (p.type == &kBFloat16) return run<__nv_bfloat16>(l, p);
  CHECK(p.type == &kFloat16, "matmul: weights of {} are not supported", p.type->name);
  run<__half>(l, p);
}

}  // namespace sluice::cuda
