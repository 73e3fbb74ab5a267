// A norm behind a sum over ranks, of rows that are whole units of four columns.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/device/rows_out.cuh"
#include "ops/ops.h"

namespace sluice::cuda {

struct NormFactors {
  const float *weight, *bias;
  float eps;

  explicit NormFactors(const ops::RowNorm& norm) : weight(norm.weight), bias(norm.bias), eps(norm.eps) {}
  // The weights of a unit.
  __device__ float4 weights(int unit) const {
    return weight != nullptr ? load_four(weight + 4 * unit) : float4{1.0f, 1.0f, 1.0f, 1.0f};
  }
};

__device__ inline float sum_of(const float4& v) { return (v.x + v.y) + (v.z + v.w); }
__device__ inline float squares_of(const float4& v) { return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w); }
__device__ inline float4 minus(const float4& v, float mean) { return {v.x - mean, v.y - mean, v.z - mean, v.w - mean}; }
__device__ inline float4 times(const float4& v, float scale) {
  return {v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}
__device__ inline float4 times(const float4& a, const float4& b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}

// Whether all rows are whole units.
inline bool in_units(const Tensor& out, const Tensor& x, const ops::RowNorm& norm) {
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return in_quads(out) && in_quads(x) && in_quads(norm.out) && aligned(norm.weight) && aligned(norm.bias);
}

// Calls f(a summand, std::bool_constant of `centred`, RowsOut).
template <class F>
void with_norm_types(const Tensor& x, const ops::RowNorm& norm, F&& f) {
  with_rows_out(norm.out, [&](const auto& to) {
    const auto with_summand = [&](auto summand) {
      if (norm.centred) return f(summand, std::true_type(), to);
      f(summand, std::false_type(), to);
    };
    if (x.dtype == &kBFloat16) return with_summand(__nv_bfloat16{});
    with_summand(float{});
  });
}

}  // namespace sluice::cuda
