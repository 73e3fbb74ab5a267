// Conversion of activations to 8-bit floats (E4M3) with a scale per row or group.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace sluice::cuda {

// The scale that makes the largest magnitude 448, the largest E4M3 number. Rows of zeros or tiny values get a scale
// whose inverse is finite. An infinite scale turns infinities into NaN and numbers into 0.
struct Fp8Scale {
  float scale, inverse;
};
__device__ inline Fp8Scale fp8_scale(float largest) {
  const float top = fmaxf(largest, 1e-30f);
  return {top * (1.0f / 448.0f), 448.0f / top};
}

// A power of two as the scale, which rounds nothing itself. It brings the largest magnitude into [128, 256). A row with
// an infinity gets the scale NaN.
__device__ inline Fp8Scale fp8_power(float largest) {
  constexpr uint32_t kExponent = 0xff, kLeast = 8, kOwn = 7;
  const uint32_t exponent = max(__float_as_uint(largest) >> 23 & kExponent, kLeast);
  if (exponent == kExponent) return {__uint_as_float(0x7fc00000), 1.0f};
  return {__uint_as_float((exponent - kOwn) << 23), __uint_as_float((2 * 127 + kOwn - exponent) << 23)};
}

// Packs four numbers, the first in the lowest byte. NaN stays NaN.
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
