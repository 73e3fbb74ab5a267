// Loads queries of attention in the type that the matmul before wrote.
#pragma once

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/device/numeric.cuh"

namespace sluice::cuda {

// Calls f with a pointer of q's type. What f loads then no longer depends on the type, so loads do not wait for one
// another.
template <class F>
__device__ inline void with_queries(const AttentionParams& p, F&& f) {
  if (p.q_type == RowType::kFloat) {
    f(static_cast<const float*>(p.q));
  } else {
    f(static_cast<const __nv_bfloat16*>(p.q));
  }
}

// Whether q is as aligned as pairs are.
__device__ inline bool pairs_of_queries(const AttentionParams& p) {
  const int bytes = p.q_type == RowType::kFloat ? 8 : 4;
  return reinterpret_cast<uintptr_t>(p.q) % bytes == 0 && p.q_stride % 2 == 0;
}
// Loads two neighbours from an even element on. `pairs`: the result of pairs_of_queries().
__device__ inline float2 query_pair(const float* q, bool pairs) {
  return pairs ? *reinterpret_cast<const float2*>(q) : make_float2(q[0], q[1]);
}
__device__ inline float2 query_pair(const __nv_bfloat16* q, bool pairs) {
  if (pairs) return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(q));
  return {to_f32(q[0]), to_f32(q[1])};
}
// Loads eight elements from a multiple of 16 bytes on.
__device__ inline void query_eight(const float* q, float (&out)[8]) {
  const float4 low = load_four(q), high = load_four(q + 4);
  out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
  out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}
__device__ inline void query_eight(const __nv_bfloat16* q, float (&out)[8]) {
  unpack(*reinterpret_cast<const uint4*>(q), out, q);
}

}  // namespace sluice::cuda
