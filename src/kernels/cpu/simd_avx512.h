// AVX-512 implementation of simd.h: sixteen fp32 lanes, masked tails. Included by simd.h only.
#pragma once

using Vec = __m512;
using Mask = __mmask16;
inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 32;

SLUICE_INLINE Mask first_lanes(int count) { return _cvtu32_mask16((1u << count) - 1); }
SLUICE_INLINE Mask operator_and(Mask a, Mask b) { return _kand_mask16(a, b); }
SLUICE_INLINE Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_blend_ps(mask, no, yes); }
SLUICE_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

SLUICE_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
SLUICE_INLINE Vec zero() { return _mm512_setzero_ps(); }
SLUICE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SLUICE_INLINE Vec add_product(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }
// max and min return their second operand when one is NaN.
SLUICE_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
SLUICE_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
SLUICE_INLINE Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SLUICE_INLINE Vec sqrt(Vec x) { return _mm512_sqrt_ps(x); }
SLUICE_INLINE Vec abs(Vec x) { return _mm512_abs_ps(x); }
SLUICE_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512i bits = _mm512_castps_si512(sign), low = _mm512_castps_si512(magnitude);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(int(0x80000000)), bits, low, 0xca));
}
SLUICE_INLINE Vec scale_by_power_of_two(Vec x, Vec exponent) { return _mm512_scalef_ps(x, exponent); }

// For a normal positive x = mantissa * 2^exponent, with the mantissa in [1, 2). The mantissa of NaN is NaN.
SLUICE_INLINE Vec exponent(Vec x) { return _mm512_getexp_ps(x); }
SLUICE_INLINE Vec mantissa(Vec x) { return _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src); }

SLUICE_INLINE float first_lane(Vec x) { return _mm512_cvtss_f32(x); }
SLUICE_INLINE float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
SLUICE_INLINE float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }
SLUICE_INLINE Vec lane_numbers() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

SLUICE_INLINE Vec load(const float* p, All) { return _mm512_loadu_ps(p); }
SLUICE_INLINE Vec load(const float* p, First n) { return _mm512_maskz_loadu_ps(first_lanes(n.count), p); }
SLUICE_INLINE void store(float* p, Vec x, All) { _mm512_storeu_ps(p, x); }
SLUICE_INLINE void store(float* p, Vec x, First n) { _mm512_mask_storeu_ps(p, first_lanes(n.count), x); }

SLUICE_INLINE __m256i load_16(const void* p, All) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SLUICE_INLINE __m256i load_16(const void* p, First n) { return _mm256_maskz_loadu_epi16(first_lanes(n.count), p); }
SLUICE_INLINE void store_16(void* p, __m256i x, All) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
SLUICE_INLINE void store_16(void* p, __m256i x, First n) { _mm256_mask_storeu_epi16(p, first_lanes(n.count), x); }

SLUICE_INLINE __m128i load_8(const void* p, All) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SLUICE_INLINE __m128i load_8(const void* p, First n) { return _mm_maskz_loadu_epi8(first_lanes(n.count), p); }
SLUICE_INLINE void store_8(void* p, __m128i x, All) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
SLUICE_INLINE void store_8(void* p, __m128i x, First n) { _mm_mask_storeu_epi8(p, first_lanes(n.count), x); }

SLUICE_INLINE Vec widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
SLUICE_INLINE Vec widen_fp16(__m256i bits) { return _mm512_cvtph_ps(bits); }
SLUICE_INLINE __m256i narrow_fp16(Vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
// Returns element `Part` of those that share each 32-bit lane.
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Bf16) {
  const __m512i lanes = _mm512_castps_si512(bits);
  return _mm512_castsi512_ps(Part == 0 ? _mm512_slli_epi32(lanes, 16)
                                       : _mm512_and_epi32(lanes, _mm512_set1_epi32(int(0xffff0000))));
}
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Fp16) {
  return widen_fp16(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(bits), 16 * Part)));
}
// See simd_avx2.h. Here these types are widened directly.
template <class T>
using Finite = T;
template <class T>
inline constexpr bool kWidensBytes = false;
// Rounds to nearest even and makes NaN quiet: the same bits as float_to_bf16 (vcvtneps2bf16 would flush subnormals).
SLUICE_INLINE __m256i narrow_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i bias = _mm512_add_epi32(_mm512_and_epi32(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_epi32(high, _mm512_set1_epi32(0x40));
  const Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
}

SLUICE_INLINE Vec widen_int8(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
SLUICE_INLINE __m128i narrow_int8(Vec x) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)); }

// E4M3 has shorter fields than fp32 and another bias. Its subnormals become fp32's, and one multiplication rescales
// all.
SLUICE_INLINE Vec widen_fp8(__m128i bytes) {
  const __m512i bits = _mm512_cvtepu8_epi32(bytes), magnitude = _mm512_and_epi32(bits, _mm512_set1_epi32(0x7f));
  const Vec moved = _mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)) * _mm512_set1_ps(0x1p120f);
  const Mask nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  const __m512i value = _mm512_mask_set1_epi32(_mm512_castps_si512(moved), nan, 0x7fc00000);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(value, _mm512_slli_epi32(bits, 24),
                                                       _mm512_set1_epi32(int(0x80000000)), 0xf8));  // a | (b & c)
}
// E5M2 is the upper half of an fp16.
SLUICE_INLINE Vec widen_fp8_e5m2(__m128i bytes) {
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}
// The magnitudes of the codes as bf16, without sign.
struct Fp8Values {
  alignas(64) uint16_t bf16[128];
};
template <class E>
constexpr Fp8Values fp8_values() {
  constexpr int kOne = 1 << E::kMantissa, kBias = 64 / kOne - 1;
  Fp8Values out{};
  for (int m = 1; m < 127; ++m) {
    int exponent = (m < kOne ? 1 : m / kOne) - kBias, mantissa = m < kOne ? m : kOne + m % kOne;
    for (; mantissa < kOne; mantissa *= 2) --exponent;
    out.bf16[m] = static_cast<uint16_t>((exponent + 127) << 7 | (mantissa & (kOne - 1)) << (7 - E::kMantissa));
  }
  if constexpr (E::kMantissa == 2) out.bf16[124] = 0x7f80, out.bf16[125] = out.bf16[126] = 0x7fc0;
  out.bf16[127] = 0x7fc0;
  return out;
}
template <class E>
inline constexpr Fp8Values kFp8Values = fp8_values<E>();
template <class E>
SLUICE_INLINE __m512i fp8_to_bf16(__m256i bytes) {
  const __m512i code = _mm512_cvtepu8_epi16(bytes);
  const auto* table = reinterpret_cast<const __m512i*>(kFp8Values<E>.bf16);
  const __m512i small = _mm512_permutex2var_epi16(table[0], code, table[1]);
  const __m512i large = _mm512_permutex2var_epi16(table[2], code, table[3]);
  const __mmask32 above = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40));
  const __m512i magnitude = _mm512_mask_blend_epi16(above, small, large);
  return _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(code, 8), _mm512_set1_epi16(int16_t(0x8000)),
                                   0xf8);  // a | (b & c)
}
// Splits pairs of neighbors: `first` gets the first of each pair, `second` the second.
SLUICE_INLINE void widen_fp8_pairs(const void* p, Vec& first, Vec& second) {
  const Vec pairs = _mm512_castsi512_ps(fp8_to_bf16<Fp8>(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
  first = widen_part<0>(pairs, Bf16{}), second = widen_part<1>(pairs, Bf16{});
}
// Rounds to nearest even and saturates to the largest number: the same bits as float_to_fp8 and float_to_fp8_e5m2.
template <class E>
SLUICE_INLINE __m128i narrow_fp8(Vec x) {
  constexpr int kShift = 23 - E::kMantissa, kBias = (64 >> E::kMantissa) - 1, kUnits = 1 << (kBias - 1);
  const __m512i bits = _mm512_castps_si512(x);
  const Vec magnitude = _mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(E::kLargest));
  const __m512i m = _mm512_castps_si512(magnitude);
  const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(m, kShift), _mm512_set1_epi32(1));
  const __m512i below = _mm512_add_epi32(odd, _mm512_set1_epi32((1 << (kShift - 1)) - 1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(m, below), kShift);
  __m512i out = _mm512_sub_epi32(rounded, _mm512_set1_epi32((127 - kBias) << E::kMantissa));
  const Mask subnormal = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(1.0f / kUnits), _CMP_LT_OQ);
  out = _mm512_mask_cvtps_epi32(out, subnormal, magnitude * _mm512_set1_ps(float(kUnits << E::kMantissa)));
  out = _mm512_mask_set1_epi32(out, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), 0x7f);
  const __m512i sign = _mm512_and_epi32(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_epi32(out, sign));
}

// Transposes rows and columns.
SLUICE_INLINE void transpose(Vec (&r)[kLanes]) {
  Vec t[kLanes];
  for (int i = 0; i < 16; i += 4) {
    const Vec a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
    const Vec c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // t[4g + i]: in 128-bit lane l, columns 4l + i of rows 4g .. 4g + 3
    const Vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
    const Vec c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}

#ifdef __AVX512BF16__
// Each lane holds two bf16. Returns sums + a's first * b's first + a's second * b's second (vdpbf16ps: subnormals are
// zero).
SLUICE_INLINE Vec dot_pairs(Vec sums, Vec a, Vec b) {
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
// Converts two vectors to bf16. The elements of `a` come first, and neighbors form pairs.
SLUICE_INLINE Vec narrow_pairs(Vec a, Vec b) { return reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(b, a)); }
// Converts int8 to bf16 exactly.
SLUICE_INLINE __m512i int8_to_bf16(__m256i codes) {
  return _mm512_castps_si512(
      narrow_pairs(widen_int8(_mm256_castsi256_si128(codes)), widen_int8(_mm256_extracti128_si256(codes, 1))));
}
#endif
