// AVX2 implementation of simd.h: eight fp32 lanes with FMA and F16C. Included by simd.h only.
#pragma once

using Vec = __m256;
using Mask = __m256;  // all ones in the active lanes
inline constexpr int kLanes = 8;
inline constexpr int kRegisters = 16;

SLUICE_INLINE Vec lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
SLUICE_INLINE __m256i first_lanes_i(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SLUICE_INLINE Mask first_lanes(int count) { return _mm256_castsi256_ps(first_lanes_i(count)); }
SLUICE_INLINE Mask operator_and(Mask a, Mask b) { return _mm256_and_ps(a, b); }
SLUICE_INLINE Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }
SLUICE_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }

SLUICE_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
SLUICE_INLINE Vec zero() { return _mm256_setzero_ps(); }
SLUICE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// fma(a, b, sum) that reuses the register of sum. Sums of a tile occupy all but four registers, and GCC might overwrite
// a or b.
SLUICE_INLINE Vec add_product(Vec sum, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
// max and min return their second operand when one is NaN.
SLUICE_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
SLUICE_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
SLUICE_INLINE Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SLUICE_INLINE Vec sqrt(Vec x) { return _mm256_sqrt_ps(x); }
SLUICE_INLINE Vec abs(Vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
SLUICE_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm256_blendv_ps(abs(magnitude), _mm256_or_ps(magnitude, _mm256_set1_ps(-0.0f)), sign);
}
// Scales in two steps, so that exponents outside fp32's range give infinity and subnormals.
SLUICE_INLINE Vec scale_by_power_of_two(Vec x, Vec exponent) {
  const __m256i n = _mm256_cvtps_epi32(exponent);
  const __m256i half = _mm256_srai_epi32(n, 1);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return x * power(half) * power(_mm256_sub_epi32(n, half));
}

// For a normal positive x = mantissa * 2^exponent, with the mantissa in [1, 2). The mantissa of NaN is NaN.
SLUICE_INLINE Vec exponent(Vec x) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(127)));
}
SLUICE_INLINE Vec mantissa(Vec x) {
  const __m256i bits = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x007fffff));
  const __m256 one_to_two = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x3f800000)));
  return _mm256_blendv_ps(one_to_two, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

SLUICE_INLINE float first_lane(Vec x) { return _mm256_cvtss_f32(x); }
SLUICE_INLINE float reduce_add(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
SLUICE_INLINE float reduce_max(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

SLUICE_INLINE Vec load(const float* p, All) { return _mm256_loadu_ps(p); }
SLUICE_INLINE Vec load(const float* p, First n) { return _mm256_maskload_ps(p, first_lanes_i(n.count)); }
SLUICE_INLINE void store(float* p, Vec x, All) { _mm256_storeu_ps(p, x); }
SLUICE_INLINE void store(float* p, Vec x, First n) { _mm256_maskstore_ps(p, first_lanes_i(n.count), x); }

SLUICE_INLINE __m128i load_16(const void* p, All) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
SLUICE_INLINE __m128i load_16(const void* p, First n) {
  __m128i x = _mm_setzero_si128();
  __builtin_memcpy(&x, p, size_t(n.count) * 2);
  return x;
}
SLUICE_INLINE void store_16(void* p, __m128i x, All) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
SLUICE_INLINE void store_16(void* p, __m128i x, First n) { __builtin_memcpy(p, &x, size_t(n.count) * 2); }

SLUICE_INLINE __m128i load_8(const void* p, All) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
SLUICE_INLINE __m128i load_8(const void* p, First n) {
  __m128i x = _mm_setzero_si128();
  __builtin_memcpy(&x, p, size_t(n.count));
  return x;
}
SLUICE_INLINE void store_8(void* p, __m128i x, All) { _mm_storel_epi64(static_cast<__m128i*>(p), x); }
SLUICE_INLINE void store_8(void* p, __m128i x, First n) { __builtin_memcpy(p, &x, size_t(n.count)); }

SLUICE_INLINE Vec widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
SLUICE_INLINE Vec widen_fp16(__m128i bits) { return _mm256_cvtph_ps(bits); }
SLUICE_INLINE __m128i narrow_fp16(Vec x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
// Returns element `Part` of those that share each 32-bit lane.
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Bf16) {
  const __m256i lanes = _mm256_castps_si256(bits);
  return _mm256_castsi256_ps(Part == 0 ? _mm256_slli_epi32(lanes, 16)
                                       : _mm256_and_si256(lanes, _mm256_set1_epi32(int(0xffff0000))));
}
SLUICE_INLINE __m128i pack_low_halves(__m256i lanes) {
  const __m256i low = _mm256_and_si256(lanes, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Fp16) {
  return widen_fp16(pack_low_halves(_mm256_srli_epi32(_mm256_castps_si256(bits), 16 * Part)));
}
// Rounds to nearest even and makes NaN quiet: the same bits as float_to_bf16.
SLUICE_INLINE __m128i narrow_bf16(Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i bias = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i out = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
}

SLUICE_INLINE Vec widen_int8(__m128i codes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)); }
SLUICE_INLINE __m128i narrow_int8(Vec x) {
  const __m256i lanes = _mm256_cvtps_epi32(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  return _mm_packs_epi16(words, words);
}

// E4M3 has shorter fields than fp32 and another bias. Its subnormals become fp32's, and one multiplication rescales
// all.
SLUICE_INLINE Vec widen_fp8_lanes(__m256i bits) {
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f));
  const Vec moved = _mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)) * _mm256_set1_ps(0x1p120f);
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  const __m256i value = _mm256_blendv_epi8(_mm256_castps_si256(moved), _mm256_set1_epi32(0x7fc00000), nan);
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(bits, 7), 31);
  return _mm256_castsi256_ps(_mm256_or_si256(value, sign));
}
SLUICE_INLINE Vec widen_fp8(__m128i bytes) { return widen_fp8_lanes(_mm256_cvtepu8_epi32(bytes)); }
// Splits pairs of neighbors: `first` gets the first of each pair, `second` the second.
SLUICE_INLINE void widen_fp8_pairs(const void* p, Vec& first, Vec& second) {
  const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  first = widen_fp8_lanes(_mm256_and_si256(pairs, _mm256_set1_epi32(0xff)));
  second = widen_fp8_lanes(_mm256_srli_epi32(pairs, 16));
}
// The type as which a T without NaN may be read.
template <class T>
using Finite = std::conditional_t<std::is_same_v<T, Fp8>, FiniteFp8, T>;
// Whether widen_part() exists for four bytes that share a lane.
template <class T>
inline constexpr bool kWidensBytes = std::is_same_v<T, Int8> || std::is_same_v<T, Fp8> || std::is_same_v<T, FiniteFp8>;
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Int8) {
  const __m256i top = _mm256_slli_epi32(_mm256_castps_si256(bits), 24 - 8 * Part);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
}
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, Fp8) {
  const __m256i lanes = _mm256_srli_epi32(_mm256_castps_si256(bits), 8 * Part);
  return widen_fp8_lanes(_mm256_and_si256(lanes, _mm256_set1_epi32(0xff)));
}
// Sign and magnitude are in fp32's positions; the bits between them do not matter.
SLUICE_INLINE Vec widen_finite_fp8(__m256i spread) {
  const __m256i bits = _mm256_and_si256(spread, _mm256_set1_epi32(int(0x87f00000)));
  return _mm256_castsi256_ps(bits) * _mm256_set1_ps(0x1p120f);
}
template <int Part>
SLUICE_INLINE Vec widen_part(Vec bits, FiniteFp8) {
  const __m256i top = _mm256_slli_epi32(_mm256_castps_si256(bits), 24 - 8 * Part);
  return widen_finite_fp8(_mm256_srai_epi32(top, 4));
}
template <class Extent>
SLUICE_INLINE Vec load(const FiniteFp8* p, Extent n) {
  return widen_finite_fp8(_mm256_slli_epi32(_mm256_cvtepi8_epi32(load_8(p, n)), 20));
}
SLUICE_INLINE bool has_nan(const Fp8* row, int64_t count) {
  const __m256i nan = _mm256_set1_epi8(0x7f);
  __m256i found = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i));
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(codes, nan), nan));
  }
  bool rest = false;
  for (; i < count; ++i) rest |= (reinterpret_cast<const uint8_t*>(row)[i] & 0x7f) == 0x7f;
  return rest || !_mm256_testz_si256(found, found);
}
// E5M2 is the upper half of an fp16.
SLUICE_INLINE Vec widen_fp8_e5m2(__m128i bytes) { return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8)); }
// Rounds to nearest even and saturates to the largest number: the same bits as float_to_fp8 and float_to_fp8_e5m2.
template <class E>
SLUICE_INLINE __m128i narrow_fp8(Vec x) {
  constexpr int kShift = 23 - E::kMantissa, kBias = (64 >> E::kMantissa) - 1, kUnits = 1 << (kBias - 1);
  const Vec magnitude = min(abs(x), broadcast(E::kLargest));
  const __m256i m = _mm256_castps_si256(magnitude);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(m, kShift), _mm256_set1_epi32(1));
  const __m256i below = _mm256_add_epi32(odd, _mm256_set1_epi32((1 << (kShift - 1)) - 1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(m, below), kShift);
  const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32((127 - kBias) << E::kMantissa));
  const __m256i small = _mm256_cvtps_epi32(magnitude * broadcast(float(kUnits << E::kMantissa)));
  const auto choose = [](__m256i no, __m256i yes, __m256 mask) {
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(mask));
  };
  __m256i out = choose(normal, small, less(magnitude, broadcast(1.0f / kUnits)));
  out = choose(out, _mm256_set1_epi32(0x7f), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  out = _mm256_or_si256(out, _mm256_slli_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 31), 7));
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  return _mm_packus_epi16(words, words);
}

// Transposes rows and columns.
SLUICE_INLINE void transpose(Vec (&r)[kLanes]) {
  Vec t[kLanes];
  for (int i = 0; i < 8; i += 4) {
    const Vec a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
    const Vec c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
}
