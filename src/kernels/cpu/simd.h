// The fp32 vector of the instruction set for which a file is compiled, with tails, narrow types, and the functions used
// by softmax and activations. Everything is in a namespace per instruction set. So no copy compiled for a newer CPU can
// be linked in place of one for an older CPU.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define SLUICE_INLINE [[gnu::always_inline]] inline
// For loops over arrays of vectors: unrolled early and completely, so that the array stays in registers.
#define SLUICE_UNROLL _Pragma("GCC unroll 32")

namespace sluice::SLUICE_ISA {

// The part of a vector that memory holds: all lanes, or the first `count` (0 < count < kLanes). Other lanes read as
// zero.
struct All {};
struct First {
  int count;
};

// Stored floats of 16 and 8 bits. Memory of these types is read and written with load and store.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};
struct Fp8 {  // E4M3
  static constexpr int kMantissa = 3;
  static constexpr float kLargest = 448.0f;
  uint8_t bits;
};
struct Fp8E5M2 {
  static constexpr int kMantissa = 2;
  static constexpr float kLargest = 57344.0f;
  uint8_t bits;
};
struct FiniteFp8 {  // E4M3 without NaN
  uint8_t bits;
};
// Integers whose scale is stored elsewhere.
struct Int8 {
  int8_t code;
};

#ifdef __AVX512F__
#include "kernels/cpu/simd_avx512.h"
#else
#include "kernels/cpu/simd_avx2.h"
#endif

template <class Extent>
SLUICE_INLINE Vec load(const Bf16* p, Extent n) {
  return widen_bf16(load_16(p, n));
}
template <class Extent>
SLUICE_INLINE Vec load(const Fp16* p, Extent n) {
  return widen_fp16(load_16(p, n));
}
template <class Extent>
SLUICE_INLINE Vec load(const Fp8* p, Extent n) {
  return widen_fp8(load_8(p, n));
}
template <class Extent>
SLUICE_INLINE Vec load(const Fp8E5M2* p, Extent n) {
  return widen_fp8_e5m2(load_8(p, n));
}
template <class Extent>
SLUICE_INLINE Vec load(const Int8* p, Extent n) {
  return widen_int8(load_8(p, n));
}
template <class Extent>
SLUICE_INLINE void store(Bf16* p, Vec x, Extent n) {
  store_16(p, narrow_bf16(x), n);
}
template <class Extent>
SLUICE_INLINE void store(Fp16* p, Vec x, Extent n) {
  store_16(p, narrow_fp16(x), n);
}
template <class Extent>
SLUICE_INLINE void store(Fp8* p, Vec x, Extent n) {
  store_8(p, narrow_fp8<Fp8>(x), n);
}
template <class Extent>
SLUICE_INLINE void store(Fp8E5M2* p, Vec x, Extent n) {
  store_8(p, narrow_fp8<Fp8E5M2>(x), n);
}

template <class Extent>
SLUICE_INLINE void store(Int8* p, Vec x, Extent n) {  // rounded and saturated to -128 .. 127
  store_8(p, narrow_int8(x), n);
}

// Calls body(offset, extent) for the vectors of [0, count).
template <class F>
SLUICE_INLINE void each_vec(int64_t count, F&& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, All{});
  if (i < count) body(i, First{static_cast<int>(count - i)});
}

// e^x within 1 ulp: 2^n * p(r) with r = x - n ln 2 in two parts (Cephes' coefficients). Exactly 1 at 0, 0 at -infinity.
SLUICE_INLINE Vec exp(Vec x) {
  x = min(broadcast(89.0f), max(broadcast(-104.0f), x));  // beyond both limits the result is infinity or zero anyway
  const Vec n = round(x * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  return scale_by_power_of_two(p, n);
}

// ln x within 2 ulp for normal x > 0. x is split into exponent and a mantissa near 1, whose ln is Cephes' polynomial.
SLUICE_INLINE Vec log(Vec x) {
  Vec m = mantissa(x), e = exponent(x);
  const Mask above = less(broadcast(1.41421356f), m);
  m = select(above, m * broadcast(0.5f), m) - broadcast(1.0f);
  e = select(above, e + broadcast(1.0f), e);
  const Vec z = m * m;
  Vec p = broadcast(7.0376836292e-2f);
  p = fma(p, m, broadcast(-1.1514610310e-1f));
  p = fma(p, m, broadcast(1.1676998740e-1f));
  p = fma(p, m, broadcast(-1.2420140846e-1f));
  p = fma(p, m, broadcast(1.4249322787e-1f));
  p = fma(p, m, broadcast(-1.6668057665e-1f));
  p = fma(p, m, broadcast(2.0000714765e-1f));
  p = fma(p, m, broadcast(-2.4999993993e-1f));
  p = fma(p, m, broadcast(3.3333331174e-1f));
  p = fma(p * m, z, e * broadcast(-2.12194440e-4f)) - broadcast(0.5f) * z;
  return fma(e, broadcast(0.693359375f), m + p);
}

// ln(1 + e^x) without cancellation at either end: max(x, 0) + ln(1 + w) with w = e^-|x|. ln(1 + w) = w ln(u) / (u - 1),
// where u is 1 + w rounded (Kahan).
SLUICE_INLINE Vec softplus(Vec x) {
  const Vec w = exp(zero() - abs(x)), u = broadcast(1.0f) + w, rest = u - broadcast(1.0f);
  const Vec tail = select(less(zero(), rest), log(u) * w / max(broadcast(1e-30f), rest), w);
  return max(zero(), x) + tail;
}

SLUICE_INLINE Vec sigmoid(Vec x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(zero() - x)); }

// tanh within 2 ulp: an odd polynomial near zero (Cephes), 1 - 2 / (e^2x + 1) elsewhere.
SLUICE_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x), z = x * x;
  Vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  const Vec near = fma(p * z, x, x);
  const Vec far = broadcast(1.0f) - broadcast(2.0f) / (exp(a + a) + broadcast(1.0f));
  return select(less(a, broadcast(0.625f)), near, copy_sign(far, x));
}

// erf within 2 ulp; the two minimax polynomials meet at 475/512.
SLUICE_INLINE Vec erf(Vec x) {
  const Vec t = abs(x), s = x * x;
  Vec p = broadcast(-1.72853470e-5f);
  p = fma(p, t, broadcast(3.83197126e-4f));
  Vec q = fma(broadcast(-3.88396438e-3f), t, broadcast(2.42546219e-2f));
  p = fma(p, s, q);
  p = fma(p, t, broadcast(-1.06777877e-1f));
  p = fma(p, t, broadcast(-6.34846687e-1f));
  p = fma(p, t, broadcast(-1.28717512e-1f));
  p = fma(p, t, zero() - t);
  const Vec far = copy_sign(broadcast(1.0f) - exp(p), x);
  Vec r = broadcast(-5.96761703e-4f);
  r = fma(r, s, broadcast(4.99119423e-3f));
  r = fma(r, s, broadcast(-2.67681349e-2f));
  r = fma(r, s, broadcast(1.12819925e-1f));
  r = fma(r, s, broadcast(-3.76125336e-1f));
  r = fma(r, s, broadcast(1.28379166e-1f));
  return select(less(t, broadcast(0.927734375f)), fma(r, x, x), far);
}

}  // namespace sluice::SLUICE_ISA
