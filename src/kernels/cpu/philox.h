// Vectors of 64-bit lanes, and philox4x32 (base/philox.h) with a counter per lane. The upper halves of lanes hold
// leftovers of products, which no step reads.
#pragma once

#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {

#ifdef __AVX512F__
using Words = __m512i;
SLUICE_INLINE Words words(uint64_t x) { return _mm512_set1_epi64(int64_t(x)); }
SLUICE_INLINE Words counters(uint32_t first) {
  return _mm512_add_epi64(words(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
SLUICE_INLINE Words multiply(Words a, Words b) { return _mm512_mul_epu32(a, b); }
SLUICE_INLINE Words upper(Words a) { return _mm512_srli_epi64(a, 32); }
SLUICE_INLINE Words exclusive_or(Words a, Words b, Words c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
SLUICE_INLINE Words larger(Words a, Words b) { return _mm512_max_epu32(a, b); }
SLUICE_INLINE bool any_at_least(Words a, uint32_t least) {
  return _mm512_mask_cmpge_epu32_mask(0x5555, a, _mm512_set1_epi32(int(least))) != 0;
}
SLUICE_INLINE void store_words(uint64_t* to, Words a) { _mm512_store_si512(to, a); }
SLUICE_INLINE Words integers(Vec x) { return _mm512_cvtps_epi32(x); }  // two per lane
SLUICE_INLINE uint64_t sum_of(Words a) { return uint64_t(_mm512_reduce_add_epi64(a)); }
#else
using Words = __m256i;
SLUICE_INLINE Words words(uint64_t x) { return _mm256_set1_epi64x(int64_t(x)); }
SLUICE_INLINE Words counters(uint32_t first) { return _mm256_add_epi64(words(first), _mm256_setr_epi64x(0, 1, 2, 3)); }
SLUICE_INLINE Words multiply(Words a, Words b) { return _mm256_mul_epu32(a, b); }
SLUICE_INLINE Words upper(Words a) { return _mm256_srli_epi64(a, 32); }
SLUICE_INLINE Words exclusive_or(Words a, Words b, Words c) { return _mm256_xor_si256(a, _mm256_xor_si256(b, c)); }
SLUICE_INLINE Words larger(Words a, Words b) { return _mm256_max_epu32(a, b); }
SLUICE_INLINE bool any_at_least(Words a, uint32_t least) {
  const __m256i not_less = _mm256_cmpeq_epi32(_mm256_max_epu32(a, _mm256_set1_epi32(int(least))), a);
  return (_mm256_movemask_ps(_mm256_castsi256_ps(not_less)) & 0x55) != 0;
}
SLUICE_INLINE void store_words(uint64_t* to, Words a) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), a); }
SLUICE_INLINE Words integers(Vec x) { return _mm256_cvtps_epi32(x); }
SLUICE_INLINE uint64_t sum_of(Words a) {
  const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  return uint64_t(_mm_extract_epi64(pair, 0)) + uint64_t(_mm_extract_epi64(pair, 1));
}
#endif

inline constexpr int kCounters = sizeof(Words) / sizeof(uint64_t);

// Replaces the counters of independent groups by their random words.
template <int Groups>
SLUICE_INLINE void philox(Words (&c)[Groups][4], uint32_t key0, uint32_t key1) {
  const Words a = words(0xD2511F53), b = words(0xCD9E8D57);
  for (int round = 0; round < 10; ++round) {
    const Words k0 = words(key0), k1 = words(key1);
    SLUICE_UNROLL
    for (int i = 0; i < Groups; ++i) {
      const Words p = multiply(c[i][0], a), q = multiply(c[i][2], b);
      c[i][0] = exclusive_or(upper(q), c[i][1], k0);
      c[i][2] = exclusive_or(upper(p), c[i][3], k1);
      c[i][1] = q;
      c[i][3] = p;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

}  // namespace sluice::SLUICE_ISA
