// Byte vectors of the instruction set for which a file is compiled: dot products of int8 with unsigned bytes, and
// helpers that decode packed quants. A vector of kLanes 32-bit lanes holds four bytes of k for each of kLanes columns.
#pragma once

#include "kernels/cpu/simd.h"

// Whether the CPU has int8 dot products of four bytes (VNNI, vpdpbusd).
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SLUICE_INT8_DOTS
#endif

namespace sluice::SLUICE_ISA {

template <class F>
SLUICE_INLINE int reduce_lanes(__m256i x, F&& both) {
  __m128i y = both(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = both(y, _mm_shuffle_epi32(y, 0x4e));
  return _mm_cvtsi128_si32(both(y, _mm_shuffle_epi32(y, 0xb1)));
}
// Adds all lanes; the sum wraps around.
SLUICE_INLINE int reduce_add_lanes(__m256i x) {
  return reduce_lanes(
      x, [](__m128i a, __m128i b) __attribute__((always_inline)) { return _mm_add_epi32(a, b); });
}

#ifdef __AVX512F__

using Bytes = __m512i;
SLUICE_INLINE Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
SLUICE_INLINE void store_bytes(void* p, Bytes x) { _mm512_storeu_si512(p, x); }
SLUICE_INLINE Bytes broadcast_lane(int x) { return _mm512_set1_epi32(x); }
SLUICE_INLINE Bytes broadcast_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
SLUICE_INLINE Bytes subtract_bytes(Bytes a, int b) { return _mm512_sub_epi8(a, broadcast_byte(b)); }
SLUICE_INLINE Bytes bits_and(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
SLUICE_INLINE Bytes bits_or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
// Returns (a & mask) | b.
SLUICE_INLINE Bytes masked_or(Bytes a, Bytes mask, Bytes b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xea); }
// Shifts 16-bit lanes. Bits that cross into a neighboring byte must be masked out.
template <int N>
SLUICE_INLINE Bytes shift_right(Bytes x) {
  if constexpr (N < 0) {
    return _mm512_slli_epi16(x, -N);
  } else if constexpr (N > 0) {
    return _mm512_srli_epi16(x, N);
  } else {
    return x;
  }
}
SLUICE_INLINE Bytes look_up(const uint8_t* table16, Bytes index) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))), index);
}
SLUICE_INLINE Vec lanes_to_float(Bytes x) { return _mm512_cvtepi32_ps(x); }
SLUICE_INLINE Vec lanes_as_float(Bytes bits) { return _mm512_castsi512_ps(bits); }
SLUICE_INLINE Bytes float_to_lanes(Vec x) { return _mm512_cvtps_epi32(x); }  // to nearest even
SLUICE_INLINE Bytes add_lanes(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
SLUICE_INLINE int reduce_add_lanes(
    Bytes x) {  // replaces GCC's _mm512_reduce_add_epi32, which ends in a signed addition
  return reduce_add_lanes(_mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
}
SLUICE_INLINE void store_saturated(int8_t* p, Bytes lanes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(lanes));
}
SLUICE_INLINE Vec load_widened(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SLUICE_INLINE Vec load_widened(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Returns 2^(e - 128) for biased exponents e.
SLUICE_INLINE Vec load_exponents(const uint8_t* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  const Mask small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal));
}
// Returns the bits of the magnitudes, which order as integers; NaN is the largest.
SLUICE_INLINE Bytes magnitude_bits(Vec x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
SLUICE_INLINE Bytes max_lanes(Bytes a, Bytes b) { return _mm512_max_epi32(a, b); }
SLUICE_INLINE int reduce_max_lanes(Bytes x) { return _mm512_reduce_max_epi32(x); }

#ifdef SLUICE_INT8_DOTS
SLUICE_INLINE Bytes int8_dots(Bytes sums, Bytes w, Bytes x) { return _mm512_dpbusd_epi32(sums, w, x); }
#else
SLUICE_INLINE Bytes pair_products(Bytes w, Bytes x) { return _mm512_maddubs_epi16(w, x); }
SLUICE_INLINE Bytes add_pairs(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
SLUICE_INLINE Bytes sum_pairs(Bytes pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
SLUICE_INLINE Bytes words_dot(Bytes a, Bytes b) { return _mm512_madd_epi16(a, b); }
SLUICE_INLINE Bytes even_bytes(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi16(0xff)); }
SLUICE_INLINE Bytes odd_bytes(Bytes x) { return _mm512_srli_epi16(x, 8); }
SLUICE_INLINE void store_even_odd(int16_t* p, Bytes lanes) {
  const __m256i words = _mm512_cvtsepi32_epi16(lanes);
  const __m256i turned = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), turned);
}
#endif

#else  // AVX2

using Bytes = __m256i;
SLUICE_INLINE Bytes load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SLUICE_INLINE void store_bytes(void* p, Bytes x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
SLUICE_INLINE Bytes broadcast_lane(int x) { return _mm256_set1_epi32(x); }
SLUICE_INLINE Bytes broadcast_byte(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
SLUICE_INLINE Bytes subtract_bytes(Bytes a, int b) { return _mm256_sub_epi8(a, broadcast_byte(b)); }
SLUICE_INLINE Bytes bits_and(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
SLUICE_INLINE Bytes bits_or(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
SLUICE_INLINE Bytes masked_or(Bytes a, Bytes mask, Bytes b) { return bits_or(bits_and(a, mask), b); }
template <int N>
SLUICE_INLINE Bytes shift_right(Bytes x) {
  if constexpr (N < 0) {
    return _mm256_slli_epi16(x, -N);
  } else if constexpr (N > 0) {
    return _mm256_srli_epi16(x, N);
  } else {
    return x;
  }
}
SLUICE_INLINE Bytes look_up(const uint8_t* table16, Bytes index) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table16))),
                             index);
}
SLUICE_INLINE Vec lanes_to_float(Bytes x) { return _mm256_cvtepi32_ps(x); }
SLUICE_INLINE Vec lanes_as_float(Bytes bits) { return _mm256_castsi256_ps(bits); }
SLUICE_INLINE Bytes float_to_lanes(Vec x) { return _mm256_cvtps_epi32(x); }
SLUICE_INLINE Bytes add_lanes(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
SLUICE_INLINE Bytes max_lanes(Bytes a, Bytes b) { return _mm256_max_epi32(a, b); }
SLUICE_INLINE int reduce_max_lanes(Bytes x) {
  return reduce_lanes(
      x, [](__m128i a, __m128i b) __attribute__((always_inline)) { return _mm_max_epi32(a, b); });
}
SLUICE_INLINE Bytes magnitude_bits(Vec x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}
SLUICE_INLINE void store_saturated(int8_t* p, Bytes lanes) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
SLUICE_INLINE Vec load_widened(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SLUICE_INLINE Vec load_widened(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SLUICE_INLINE Vec load_exponents(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
}
#ifdef SLUICE_INT8_DOTS
SLUICE_INLINE Bytes int8_dots(Bytes sums, Bytes w, Bytes x) { return _mm256_dpbusd_avx_epi32(sums, w, x); }
#else
SLUICE_INLINE Bytes pair_products(Bytes w, Bytes x) { return _mm256_maddubs_epi16(w, x); }
SLUICE_INLINE Bytes add_pairs(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
SLUICE_INLINE Bytes sum_pairs(Bytes pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
SLUICE_INLINE Bytes words_dot(Bytes a, Bytes b) { return _mm256_madd_epi16(a, b); }
SLUICE_INLINE Bytes even_bytes(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi16(0xff)); }
SLUICE_INLINE Bytes odd_bytes(Bytes x) { return _mm256_srli_epi16(x, 8); }
SLUICE_INLINE void store_even_odd(int16_t* p, Bytes lanes) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  const __m128i turned = _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xd8), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), turned);
}
#endif

#endif

// Four inputs for every column, the operand of dot() next to unsigned bytes of weights.
struct Quad {
  Bytes bytes;
};
struct WideQuad {
  Bytes even, odd;  // widened to 16 bits
};
SLUICE_INLINE Bytes broadcast_word(const void* p) {
  int x;
  __builtin_memcpy(&x, p, sizeof x);
  return broadcast_lane(x);
}
SLUICE_INLINE Quad load_quad(const int8_t* p) { return {broadcast_word(p)}; }

// Returns sums + w[4 * i ..] * x[4 * i ..] in lane i. x is at least -127; w is at most kLargestByte with a Quad.
#ifdef SLUICE_INT8_DOTS
inline constexpr int kLargestByte = 255;
SLUICE_INLINE Bytes dot(Bytes sums, Bytes w, Quad x) { return int8_dots(sums, w, x.bytes); }
#else
inline constexpr int kLargestByte = 128;  // 16 bits hold 2 * 128 * 127
// Forces sums into sequence: GCC would add them as a tree whose leaves do not fit in the registers.
SLUICE_INLINE Bytes ordered(Bytes sums) {
  __asm__("" : "+x"(sums));
  return sums;
}
SLUICE_INLINE Bytes dot(Bytes sums, Bytes w, Quad x) {
  return ordered(add_lanes(sums, sum_pairs(pair_products(w, x.bytes))));
}
SLUICE_INLINE Bytes dot(Bytes sums, Bytes w, WideQuad x) {
  sums = ordered(add_lanes(sums, words_dot(even_bytes(w), x.even)));
  return ordered(add_lanes(sums, words_dot(odd_bytes(w), x.odd)));
}
SLUICE_INLINE WideQuad load_quad(const int16_t* p) { return {broadcast_word(p), broadcast_word(p + 2)}; }
#endif

// Returns how many pair sums (weights up to `largest` times int8, at least -127) fit when added in 16 bits: a power of
// two up to 8. 1 is what dot() does. This limits the slowdown on instruction sets without int8 dot products.
constexpr int pairs_together([[maybe_unused]] int largest) {
#ifdef SLUICE_INT8_DOTS
  return 1;
#else
  int pairs = 1;
  while (pairs < 8 && 2 * pairs * 2 * 127 * largest < 1 << 15) pairs *= 2;
  return pairs;
#endif
}

// Computes dot product `i` of a row of dot products, of which `Together` accumulate in `pairs`. Together divides their
// number.
template <int Together, class Inputs>
SLUICE_INLINE void add_dot(Bytes& sums, [[maybe_unused]] Bytes& pairs, [[maybe_unused]] int i, Bytes w, Inputs x) {
#ifndef SLUICE_INT8_DOTS
  if constexpr (Together > 1) {
    const Bytes products = pair_products(w, x.bytes);
    pairs = ordered(i % Together == 0 ? products : add_pairs(pairs, products));
    if (i % Together == Together - 1) sums = add_lanes(sums, sum_pairs(pairs));
    return;
  }
#endif
  sums = dot(sums, w, x);
}

}  // namespace sluice::SLUICE_ISA
