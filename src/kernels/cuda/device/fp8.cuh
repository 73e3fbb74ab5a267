// 8-bit floats (E4M3) of activations: the scale of a row or a group, and its elements.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace sluice::cuda {

// The largest magnitude becomes 448, the largest number. Rows of nothing but zeros, or next to nothing, get a scale
// whose inverse is finite. An infinite one makes NaN of infinities, 0 of numbers.
struct Fp8Scale {
  float scale, inverse;
};
__device__ inline Fp8Scale fp8_scale(float largest) {
  const float top = fmaxf(largest, 1e-30f);
  return {top * (1.0f / 448.0f), 448.0f / top};
}

// A power of two instead, which rounds nothing itself: the largest magnitude becomes one from 128 on, below 256. A row
// with an infinity becomes NaN by its scale.
__device__ inline Fp8Scale fp8_power(float largest) {
  constexpr uint32_t kExponent = 0xff, kLeast = 8, kOwn = 7;
  const uint32_t exponent = max(__float_as_uint(largest) >> 23 & kExponent, kLeast);
  if (exponent == kExponent) return {__uint_as_float(0x7fc00000), 1.0f};
  return {__uint_as_float((exponent - kOwn) << 23), __uint_as_float((2 * 127 + kOwn - exponent) << 23)};
}

// Four numbers, the first in the lowest byte. NaN stays NaN.
template <__nv_fp8_interpretation_t kind = __NV_E4M3>
__device__ inline uint32_t pack_fp8(const float4& v, float inverse) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({v.x * inverse, v.y * inverse}, __NV_SATFINITE, kind);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({v.z * inverse, v.w * inverse}, __NV_SATFINITE, kind);
  return low | high << 16;
}

__device__ inline float largest_of(const float4& v) {
  return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

}  // namespace sluice::cuda
