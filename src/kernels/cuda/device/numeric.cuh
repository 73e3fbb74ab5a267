// Conversions and loads of the stored types: fp32, bf16, fp16 and 8-bit floats (E4M3, E5M2), in packs of 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace sluice::cuda {

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(double x) { return static_cast<float>(x); }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_f32(__half x) { return __half2float(x); }
__device__ inline float to_f32(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ inline float to_f32(__nv_fp8_e5m2 x) { return static_cast<float>(x); }
__device__ inline float to_f32(int8_t x) { return static_cast<float>(x); }

template <class T>
__device__ inline T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_f32<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_fp8_e4m3 from_f32<__nv_fp8_e4m3>(float x) {  // saturates at 448; NaN stays NaN
  return __nv_fp8_e4m3(x);
}
template <>
__device__ inline __nv_fp8_e5m2 from_f32<__nv_fp8_e5m2>(float x) {  // saturates at 57344; NaN stays NaN
  return __nv_fp8_e5m2(x);
}

// Packs two values into the 32 bits that a tensor core takes, the first in the low half.
template <class T>
__device__ inline uint32_t pack2(float low, float high);
template <>
__device__ inline uint32_t pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
template <>
__device__ inline uint32_t pack2<__half>(float low, float high) {
  const __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Widens two 8-bit floats to two fp16, exactly.
__device__ inline uint32_t widen_fp8(uint32_t pair) {
  const __half2_raw v = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return v.x | static_cast<uint32_t>(v.y) << 16;
}

// Widens the first two, or the last two, of four 8-bit elements to two 16-bit elements of Type, exactly.
template <class T>
struct WideOf;
template <>
struct WideOf<__nv_fp8_e4m3> {
  using Type = __half;
  __device__ static uint32_t low(uint32_t four) { return widen_fp8(four & 0xffff); }
  __device__ static uint32_t high(uint32_t four) { return widen_fp8(four >> 16); }
};
template <>
struct WideOf<__nv_fp8_e5m2> {  // an E5M2 number is the upper half of an fp16 number
  using Type = __half;
  __device__ static uint32_t low(uint32_t four) { return __byte_perm(four, 0, 0x1404); }
  __device__ static uint32_t high(uint32_t four) { return __byte_perm(four, 0, 0x3424); }
};
// Both 128 + (c & 127) and, by the sign, 128 or 256 are bf16 numbers with the bits 0x43 above a byte; their difference
// is c.
template <>
struct WideOf<int8_t> {
  using Type = __nv_bfloat16;
  __device__ static uint32_t low(uint32_t four) { return widen(four, 0x4140); }
  __device__ static uint32_t high(uint32_t four) { return widen(four, 0x4342); }

 private:
  __device__ static uint32_t widen(uint32_t four, uint32_t bytes) {
    const uint32_t rest = __byte_perm(four & 0x7f7f7f7f, 0x43, bytes),
                   sign = __byte_perm(four & 0x80808080, 0x43, bytes);
    const __nv_bfloat162 c =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&rest), *reinterpret_cast<const __nv_bfloat162*>(&sign));
    return *reinterpret_cast<const uint32_t*>(&c);
  }
};

// 2^x by the special function unit. It is 0 for -inf, and results below 2^-126 are flushed to 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh with an absolute error of 2e-7 and no branches.
__device__ inline float tanh_fast(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(exp2_fast(2.8853900817779268f * x) + 1.0f));
  return fmaf(-2.0f, inverse, 1.0f);
}

// Elements in 16 bytes.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

// Unpacks 16 bytes to fp32.
__device__ inline void unpack(const uint4& pack, float (&out)[4], const float*) {
  out[0] = __uint_as_float(pack.x), out[1] = __uint_as_float(pack.y);
  out[2] = __uint_as_float(pack.z), out[3] = __uint_as_float(pack.w);
}
__device__ inline void unpack(const uint4& pack, float (&out)[8], const __nv_bfloat16*) {
  const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ inline void unpack(const uint4& pack, float (&out)[8], const __half*) {
  const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
  }
}

// Loads four elements from an address aligned to their total size.
__device__ inline float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ inline float4 load_four(const __nv_bfloat16* p) {
  const uint2 v = *reinterpret_cast<const uint2*>(p);
  return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
          __uint_as_float(v.y & 0xffff0000u)};
}

// Loads 16 bytes that are read once: they are not allocated in L1.
__device__ inline uint4 load_streaming(const void* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

}  // namespace sluice::cuda
