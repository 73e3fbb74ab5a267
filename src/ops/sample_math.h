// The arithmetic of sampling. Every device computes it with the same operations in the same order, so that equal logits
// give equal tokens. Multiplications whose results are added are fused explicitly; no compiler may fuse others.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define SLUICE_SAMPLE_MATH __host__ __device__ inline
#else
#define SLUICE_SAMPLE_MATH [[gnu::always_inline]] inline  // in kernels too, which share no functions
#endif

namespace sluice::ops {

SLUICE_SAMPLE_MATH float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
// A product that no compiler fuses with a sum.
SLUICE_SAMPLE_MATH float times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
SLUICE_SAMPLE_MATH uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}
SLUICE_SAMPLE_MATH float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

// Weights below e^-31 count as zero: noise has a range of 19.5, so such tokens are never sampled.
inline constexpr float kLowestExponent = -31.0f;
inline constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds; the low bits are the integer

// Returns e^x for x <= 0 within 1 ulp (Cephes' expf), exactly 1 at 0.
SLUICE_SAMPLE_MATH float sample_weight(float x) {
  if (!(x >= kLowestExponent)) return 0.0f;
  const float shifted = fused(x, 1.44269504f, kRoundToInteger);
  const float n = shifted - kRoundToInteger;
  float r = fused(n, -0.693359375f, x);
  r = fused(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fused(p, r, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  p = fused(p, r, 5.0000001201e-1f);
  p = fused(p, r * r, r) + 1.0f;
  return p * float_of((bits_of(shifted) + 127) << 23);
}

// Returns ln x for normal x > 0 within 2 ulp (Cephes' logf).
SLUICE_SAMPLE_MATH float sample_log(float x) {
  const uint32_t bits = bits_of(x);
  auto e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  float m = float_of((bits & 0x007fffffu) | 0x3f800000u);
  if (m > 1.41421356f) m *= 0.5f, e += 1.0f;
  m -= 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = fused(p, m, -1.1514610310e-1f);
  p = fused(p, m, 1.1676998740e-1f);
  p = fused(p, m, -1.2420140846e-1f);
  p = fused(p, m, 1.4249322787e-1f);
  p = fused(p, m, -1.6668057665e-1f);
  p = fused(p, m, 2.0000714765e-1f);
  p = fused(p, m, -2.4999993993e-1f);
  p = fused(p, m, 3.3333331174e-1f);
  p = fused(p * m, z, e * -2.12194440e-4f);
  p = fused(-0.5f, z, p);
  return fused(e, 0.693359375f, m + p);
}

// Maps random bits to a uniform number in (0, 1).
SLUICE_SAMPLE_MATH float open_uniform(uint32_t bits) { return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f; }

// Returns scale * logit + Gumbel noise. The noise is between -2.9 and 16.7.
SLUICE_SAMPLE_MATH float sample_score(float scale, float logit, uint32_t bits) {
  return fused(scale, logit, -sample_log(-sample_log(open_uniform(bits))));
}

inline constexpr float kMostNoise = 17.0f;  // more than any noise

// A weight is summed as an integer in units of 1 / kSampleWeightUnits. The sum of 2^20 such integers fits in 64 bits.
inline constexpr float kSampleWeightUnits = 0x1p43f;

// Logits as integers, for their standard deviation: in units of 1 / kLogitUnits, at most kMostLogitUnits from 0. They
// do not refer to the largest logit, so that one pass finds it and adds them up. The sum of 2^20 squares fits in 64
// bits.
inline constexpr float kLogitUnits = 0x1p11f, kMostLogitUnits = 0x1p21f;

SLUICE_SAMPLE_MATH int32_t logit_units(float logit) {
  const float units = times(logit, kLogitUnits);
  const float most = units < kMostLogitUnits ? units : kMostLogitUnits;
  const float near = most > -kMostLogitUnits ? most : -kMostLogitUnits;
  return static_cast<int32_t>(bits_of(near + kRoundToInteger) - bits_of(kRoundToInteger));
}

// Sums over the unmasked tokens of a row.
struct LogitSums {
  uint64_t tokens = 0;
  int64_t sum = 0;
  uint64_t squares = 0;
};

// Returns the least logit that top-n-sigma keeps: max - n * standard deviation.
SLUICE_SAMPLE_MATH float sigma_cutoff(float max, float n, const LogitSums& logits) {
  const auto tokens = static_cast<double>(logits.tokens);
  const double mean = static_cast<double>(logits.sum) / tokens;
#ifdef __CUDA_ARCH__
  const double variance = fma(-mean, mean, static_cast<double>(logits.squares) / tokens);
#else
  const double variance = __builtin_fma(-mean, mean, static_cast<double>(logits.squares) / tokens);
#endif
  const double deviation = variance > 0 ? sqrt(variance) / static_cast<double>(kLogitUnits) : 0.0;
  const double drop = static_cast<double>(n) * deviation;
#ifdef __CUDA_ARCH__
  return static_cast<float>(__dsub_rn(static_cast<double>(max), drop));
#else
  return static_cast<float>(static_cast<double>(max) - drop);
#endif
}

}  // namespace sluice::ops
