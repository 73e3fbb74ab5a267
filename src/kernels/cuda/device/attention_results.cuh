// Writes results of attention in the type that the projection behind it reads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/device/numeric.cuh"

namespace sluice::cuda {

// Writes results from element `at` of out on. put_results() writes two: `at` is even, and out is as aligned as pairs
// are.
__device__ inline void put_result(const AttentionParams& p, int64_t at, float v) {
  if (p.out_type == RowType::kFloat) {
    static_cast<float*>(p.out)[at] = v;
  } else if (p.out_type == RowType::kBFloat16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(v);
  } else {
    static_cast<__half*>(p.out)[at] = __float2half_rn(v);
  }
}
__device__ inline void put_results(const AttentionParams& p, int64_t at, float2 v) {
  if (p.out_type == RowType::kFloat) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = v;
  } else if (p.out_type == RowType::kBFloat16) {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.out) + at) = __floats2bfloat162_rn(v.x, v.y);
  } else {
    *reinterpret_cast<__half2*>(static_cast<__half*>(p.out) + at) = __floats2half2_rn(v.x, v.y);
  }
}
// Writes eight results: `at` is a multiple of eight, and out is aligned to packs of 16 bytes.
__device__ inline void put_eight_results(const AttentionParams& p, int64_t at, const float (&v)[8]) {
  if (p.out_type == RowType::kFloat) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(p.out) + at);
    to[0] = {v[0], v[1], v[2], v[3]}, to[1] = {v[4], v[5], v[6], v[7]};
  } else if (p.out_type == RowType::kBFloat16) {
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + at) = {
        pack2<__nv_bfloat16>(v[0], v[1]), pack2<__nv_bfloat16>(v[2], v[3]), pack2<__nv_bfloat16>(v[4], v[5]),
        pack2<__nv_bfloat16>(v[6], v[7])};
  } else {
    *reinterpret_cast<uint4*>(static_cast<__half*>(p.out) + at) = {
        pack2<__half>(v[0], v[1]), pack2<__half>(v[2], v[3]), pack2<__half>(v[4], v[5]), pack2<__half>(v[6], v[7])};
  }
}
__device__ inline bool eights_of_results(const AttentionParams& p) {
  const int pack = p.out_type == RowType::kFloat ? 4 : 8;
  return reinterpret_cast<uintptr_t>(p.out) % 16 == 0 && p.out_stride % pack == 0;
}
__device__ inline bool pairs_of_results(const AttentionParams& p) {
  const int bytes = p.out_type == RowType::kFloat ? 8 : 4;
  return reinterpret_cast<uintptr_t>(p.out) % bytes == 0 && p.out_stride % 2 == 0;
}

// Writes AttentionArgs::log_sums for one head of row `token` of the batch. `sum` is that of exponentials relative to
// two to the power of `top`.
__device__ inline void put_log_sum(const PartParams& p, int64_t token, int head, float top, float sum) {
  constexpr float kLn2 = 0.6931471805599453f;
  p.log_sums[token * p.heads + head] = sum == 0.0f ? -INFINITY : (top + log2f(sum)) * kLn2;
}

}  // namespace sluice::cuda
