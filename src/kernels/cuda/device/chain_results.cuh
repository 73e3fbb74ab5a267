// Writes the sums of matmuls whose kernels must round alike (matmul/chain.h).
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

struct ChainResults {
  void* out;  // fp32, or bf16
  int64_t stride;
  const float* bias;  // or null
  int64_t bias_step;  // from a matrix to the next one
  int n;              // outputs
  bool bf16, accumulate;

  // `from`: where the biases of these outputs begin.
  __device__ float bias_of(int output, int matrix = 0, int from = 0) const {
    return bias != nullptr && output < n ? bias[matrix * bias_step + from + output] : 0.0f;
  }
  // What lies where a result is added. Kernels call this for several results before they write the first, so that the
  // loads do not wait for one another.
  __device__ float old(int64_t row, int output) const {
    return accumulate && output < n ? static_cast<const float*>(out)[row * stride + output] : 0.0f;
  }
  // Writes the sum with its bias, or adds both to `old`, unless the output lies beyond the last.
  __device__ void put(int64_t row, int output, float sum, float old) const {
    if (output >= n) return;
    if (bf16) {
      static_cast<__nv_bfloat16*>(out)[row * stride + output] = __float2bfloat16_rn(sum);
    } else {
      static_cast<float*>(out)[row * stride + output] = accumulate ? __fadd_rn(sum, old) : sum;
    }
  }
};

inline ChainResults chain_results(const MatmulProblem& p) {
  const bool bf16 = p.out.dtype == &kBFloat16;
  CHECK(bf16 ? !p.accumulate : p.out.dtype == &kFloat32,
        "matmul cannot write {} here (expected float32, or bfloat16 without accumulation)", p.out.dtype->name);
  return {.out = p.out.data,
          .stride = p.out.row_stride,
          .bias = p.bias,
          .bias_step = p.bias_step,
          .n = static_cast<int>(p.n),
          .bf16 = bf16,
          .accumulate = p.accumulate};
}

}  // namespace sluice::cuda
