// Splits the block formats made of small integers and scales into parts: the quants of 32 weights as words of unsigned
// bytes, and the scales of a block. Kernels repack these parts into their own layouts.
#pragma once

#include <algorithm>
#include <cstring>

#include "quant/integers.h"

namespace sluice::quant {

inline constexpr int kWords = 8;  // words in a block of 32 inputs, four inputs each

// The stored quants of 32 inputs of one column: eight words of unsigned bytes.
using Words = uint32_t[kWords];

inline uint32_t word_at(const uint8_t* p, int i) { return load_u32(p + 4 * i); }
constexpr uint32_t every_byte(uint32_t byte) { return byte * 0x01010101u; }

// Splits 32 nibbles, element i stored beside element i + 16, as the 32-element formats do.
inline void split_nibbles(const uint8_t* p, Words& words) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t both = word_at(p, i);
    words[i] = both & every_byte(15);
    words[i + 4] = both >> 4 & every_byte(15);
  }
}

// Extracts the bits `mask` << shift of 32 bytes.
inline void take_bits(const uint8_t* p, int shift, uint32_t mask, Words& words) {
  for (int i = 0; i < kWords; ++i) words[i] = word_at(p, i) >> shift & every_byte(mask);
}

// Adds bit `bit` of each of 32 bytes to the elements, at bit `to`.
inline void add_plane(const uint8_t* p, int bit, int to, Words& words) {
  for (int i = 0; i < kWords; ++i) words[i] |= (word_at(p, i) >> bit & every_byte(1)) << to;
}

// Adds bit i of a 32-bit number to element i, at bit `to`.
inline void add_bits(uint32_t bits, int to, Words& words) {
  for (int i = 0; i < kWords; ++i) {
    const uint32_t four = bits >> (4 * i);
    words[i] |= ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << to;
  }
}

// The scales of a block: 16-bit numbers, then multipliers.
struct ScaleBlock {
  uint16_t halves[4];          // the first two form a 32-bit word for kGroup, kFloat and kFloat8
  uint8_t multipliers[2][16];  // [0]: multipliers of scales (int8 for kSuper, E4M3 for kFloat8), [1]: of minima
};

inline uint16_t negative_half(uint16_t half) { return half ^ 0x8000; }
inline ScaleBlock word_scale(uint32_t word) {
  return {.halves = {static_cast<uint16_t>(word), static_cast<uint16_t>(word >> 16)}, .multipliers = {}};
}

// Parts of a format: words() returns the quants of the b-th 32 weights of a block, scales() the block's scales.
template <class Codec>
struct Parts;

template <>
struct Parts<Q8_0> {
  static void words(const Q8_0::Block& block, int, Words& out) {
    for (int i = 0; i < kWords; ++i) {
      out[i] = word_at(reinterpret_cast<const uint8_t*>(block.qs), i) ^ every_byte(0x80);
    }
  }
  static ScaleBlock scales(const Q8_0::Block& block) { return {.halves = {block.d}, .multipliers = {}}; }
};

template <class Codec>
struct NibbleParts {
  static void words(const typename Codec::Block& block, int, Words& out) {
    split_nibbles(block.qs, out);
    if constexpr (kIntegers<Codec>.high == 1) add_bits(load_u32(block.qh), 4, out);
  }
  static ScaleBlock scales(const typename Codec::Block& block) {
    if constexpr (kIntegers<Codec>.mins()) {
      return {.halves = {block.d, block.m}, .multipliers = {}};
    } else {
      return {.halves = {block.d}, .multipliers = {}};
    }
  }
};
template <>
struct Parts<Q4_0> : NibbleParts<Q4_0> {};
template <>
struct Parts<Q4_1> : NibbleParts<Q4_1> {};
template <>
struct Parts<Q5_0> : NibbleParts<Q5_0> {};
template <>
struct Parts<Q5_1> : NibbleParts<Q5_1> {};
template <>
struct Parts<IQ4_NL> : NibbleParts<IQ4_NL> {};

template <>
struct Parts<MXFP4> {
  static void words(const MXFP4::Block& block, int, Words& out) { split_nibbles(block.qs, out); }
  static ScaleBlock scales(const MXFP4::Block& block) { return {.halves = {block.e}, .multipliers = {}}; }
};

template <>
struct Parts<Q2_K> {
  static void words(const Q2_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
  }
  static ScaleBlock scales(const Q2_K::Block& block) {
    ScaleBlock s{.halves = {block.d, negative_half(block.dmin)}, .multipliers = {}};
    for (int i = 0; i < 16; ++i) {
      s.multipliers[0][i] = block.scales[i] & 15;
      s.multipliers[1][i] = block.scales[i] >> 4;
    }
    return s;
  }
};

template <>
struct Parts<Q3_K> {
  static void words(const Q3_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
    add_plane(block.hmask, b, 2, out);
  }
  static ScaleBlock scales(const Q3_K::Block& block) {
    ScaleBlock s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 16; ++i) {
      const int low = block.scales[i % 8] >> (i / 8 * 4) & 15, high = block.scales[8 + i % 4] >> (i / 4 * 2) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
  }
};

inline ScaleBlock super_scales(uint16_t d, uint16_t dmin, const uint8_t (&packed)[12]) {
  ScaleBlock s{.halves = {d, negative_half(dmin)}, .multipliers = {}};
  const ScalesAndMins unpacked = unpack_scales(packed);
  std::copy_n(unpacked.scale, 8, s.multipliers[0]);
  std::copy_n(unpacked.min, 8, s.multipliers[1]);
  return s;
}

template <>
struct Parts<Q4_K> {
  static void words(const Q4_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 2 * 32, b % 2 * 4, 15, out);
  }
  static ScaleBlock scales(const Q4_K::Block& block) { return super_scales(block.d, block.dmin, block.scales); }
};

template <>
struct Parts<Q5_K> {
  static void words(const Q5_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 2 * 32, b % 2 * 4, 15, out);
    add_plane(block.qh, b, 4, out);
  }
  static ScaleBlock scales(const Q5_K::Block& block) { return super_scales(block.d, block.dmin, block.scales); }
};

template <>
struct Parts<Q6_K> {
  static void words(const Q6_K::Block& block, int b, Words& out) {
    const int half = b / 4, group = b % 4;
    take_bits(block.ql + half * 64 + group % 2 * 32, group / 2 * 4, 15, out);
    Words high;
    take_bits(block.qh + half * 32, group * 2, 3, high);
    for (int i = 0; i < kWords; ++i) out[i] |= high[i] << 4;
  }
  static ScaleBlock scales(const Q6_K::Block& block) {
    ScaleBlock s{.halves = {block.d}, .multipliers = {}};
    std::memcpy(s.multipliers[0], block.scales, 16);
    return s;
  }
};

template <>
struct Parts<IQ4_XS> {
  static void words(const IQ4_XS::Block& block, int b, Words& out) { split_nibbles(block.qs + b * 16, out); }
  static ScaleBlock scales(const IQ4_XS::Block& block) {
    ScaleBlock s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 8; ++i) {
      const int low = block.scales_l[i / 2] >> (i % 2 * 4) & 15, high = block.scales_h >> (2 * i) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
  }
};

template <>
struct Parts<NVFP4> {
  static void words(const NVFP4::Block& block, int b, Words& out) {
    for (int i = 0; i < kWords; ++i) {  // groups of 16: elements 0 to 7 are low nibbles, the others high nibbles
      out[i] = word_at(block.qs + b * 16 + i / 4 * 8, i % 2) >> (i / 2 % 2 * 4) & every_byte(15);
    }
  }
  static ScaleBlock scales(const NVFP4::Block& block) {
    ScaleBlock s{.halves = {}, .multipliers = {}};
    for (int i = 0; i < 4; ++i) s.halves[i] = float_to_fp16(NVFP4::scale(block.d[i]));  // exact
    return s;
  }
};

template <>
struct Parts<ScaledNVFP4> {
  static void words(const ScaledNVFP4::Block& block, int b, Words& out) { Parts<NVFP4>::words(block.groups, b, out); }
  // E4M3 without its sign, which the format ignores, and without its NaN, which counts as zero.
  static ScaleBlock scales(const ScaledNVFP4::Block& block) {
    ScaleBlock s = word_scale(__builtin_bit_cast(uint32_t, block.scale));
    for (int i = 0; i < 4; ++i) s.multipliers[0][i] = block.groups.d[i] == 0x7f ? 0 : block.groups.d[i] & 0x7f;
    return s;
  }
};

template <>
struct Parts<NF4> {
  static void words(const NF4::Block& block, int b, Words& out) { split_nibbles(block.qs + b * 16, out); }
  static ScaleBlock scales(const NF4::Block& block) { return word_scale(__builtin_bit_cast(uint32_t, block.scale)); }
};

// For formats of codebooks and digits: stores 32 codes. Each code stands for one of the format's levels.
template <class F>
void fill_codes(Words& words, F&& code) {
  uint8_t codes[4 * kWords];
  for (int i = 0; i < 4 * kWords; ++i) codes[i] = static_cast<uint8_t>(code(i));
  std::memcpy(words, codes, sizeof codes);
}
// Scales that are odd multiples of the smallest scale, given by a number per sub-block.
template <class F>
ScaleBlock odd_scales(uint16_t d, int count, F&& number) {
  ScaleBlock s{.halves = {d}, .multipliers = {}};
  for (int i = 0; i < count; ++i) s.multipliers[0][i] = static_cast<uint8_t>(1 + 2 * number(i));
  return s;
}

template <class Codec>
ScaleBlock one_scale(const typename Codec::Block& block) {
  return odd_scales(block.d, 8, [](int) { return 0; });
}
template <>
struct Parts<TQ1_0> {
  static void words(const TQ1_0::Block& block, int b, Words& out) {
    constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    fill_codes(out, [&](int i) {
      const int at = b * 32 + i, rest = at - 160;
      const uint8_t byte = at < 160 ? block.qs[i] : at < 240 ? block.qs[32 + rest % 16] : block.qh[at % 4];
      return TQ1_0::digit(byte, kPowers[at < 160 ? b : at < 240 ? rest / 16 : (at - 240) / 4]) + 1;
    });
  }
  static ScaleBlock scales(const TQ1_0::Block& block) { return one_scale<TQ1_0>(block); }
};
template <>
struct Parts<TQ2_0> {
  static void words(const TQ2_0::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
  }
  static ScaleBlock scales(const TQ2_0::Block& block) { return one_scale<TQ2_0>(block); }
};

// The codes stand for the levels in quant/integers.h.
constexpr int iq2_code(int magnitude, uint32_t minus) { return magnitude / 16 + static_cast<int>(minus & 1) * 4; }
constexpr int iq3_xxs_code(int magnitude, uint32_t minus) { return magnitude / 8 + static_cast<int>(minus & 1) * 8; }
constexpr int iq3_s_code(int magnitude, uint32_t minus) { return magnitude / 2 + static_cast<int>(minus & 1) * 8; }
constexpr int iq1_code(int entry, bool more) { return 2 * (entry + 1) + (more ? 1 : 0); }

template <>
struct Parts<IQ1_S> {
  static void words(const IQ1_S::Block& block, int b, Words& out) {
    const uint32_t high = load_u16(block.qh + b * 2);
    fill_codes(out, [&](int i) {
      const uint32_t index = block.qs[b * 4 + i / 8] | (high >> (3 * (i / 8)) & 7) << 8;
      return iq1_code(kGridIq1S[index].values[i % 8], (high & 0x8000) == 0);
    });
  }
  static ScaleBlock scales(const IQ1_S::Block& block) {
    return odd_scales(block.d, 8, [&](int sub) { return load_u16(block.qh + sub * 2) >> 12 & 7; });
  }
};
template <>
struct Parts<IQ1_M> {
  static void words(const IQ1_M::Block& block, int b, Words& out) {
    fill_codes(out, [&](int i) {
      const int g = b * 4 + i / 8;
      const uint32_t high = static_cast<uint32_t>(block.qh[g / 2]) >> (g % 2 * 4);
      return iq1_code(kGridIq1S[block.qs[g] | (high & 7) << 8].values[i % 8], (high & 8) == 0);
    });
  }
  static ScaleBlock scales(const IQ1_M::Block& block) {
    uint32_t half = 0;
    for (int i = 0; i < 4; ++i) half |= static_cast<uint32_t>(load_u16(block.scales + 2 * i) >> 12) << (4 * i);
    return odd_scales(static_cast<uint16_t>(half), 16,
                      [&](int sub) { return load_u16(block.scales + sub / 4 * 2) >> (3 * (sub % 4)) & 7; });
  }
};
template <>
struct Parts<IQ2_XXS> {
  static void words(const IQ2_XXS::Block& block, int b, Words& out) {
    const uint8_t* q = block.qs + b * 8;
    const uint32_t rest = load_u32(q + 4);
    fill_codes(out, [&](int i) {
      return iq2_code(kGridIq2Xxs[q[i / 8]].values[i % 8], even_signs(rest >> (7 * (i / 8)) & 127) >> (i % 8));
    });
  }
  static ScaleBlock scales(const IQ2_XXS::Block& block) {
    return odd_scales(block.d, 8, [&](int sub) { return load_u32(block.qs + sub * 8 + 4) >> 28; });
  }
};
template <>
struct Parts<IQ2_XS> {
  static void words(const IQ2_XS::Block& block, int b, Words& out) {
    fill_codes(out, [&](int i) {
      const uint32_t q = load_u16(block.qs + (b * 4 + i / 8) * 2);
      return iq2_code(kGridIq2Xs[q & 511].values[i % 8], even_signs(q >> 9) >> (i % 8));
    });
  }
  static ScaleBlock scales(const IQ2_XS::Block& block) {
    return odd_scales(block.d, 16, [&](int sub) { return block.scales[sub / 2] >> (sub % 2 * 4) & 15; });
  }
};
template <>
struct Parts<IQ2_S> {
  static void words(const IQ2_S::Block& block, int b, Words& out) {
    fill_codes(out, [&](int i) {
      const int g = b * 4 + i / 8, index = block.qs[g] | (block.qh[b] >> (g % 4 * 2) & 3) << 8;
      return iq2_code(kGridIq2S[index].values[i % 8], static_cast<uint32_t>(block.signs[g]) >> (i % 8));
    });
  }
  static ScaleBlock scales(const IQ2_S::Block& block) {
    return odd_scales(block.d, 16, [&](int sub) { return block.scales[sub / 2] >> (sub % 2 * 4) & 15; });
  }
};
template <>
struct Parts<IQ3_XXS> {
  static void words(const IQ3_XXS::Block& block, int b, Words& out) {
    const uint32_t rest = load_u32(block.rest + b * 4);
    fill_codes(out, [&](int i) {
      const uint32_t signs = even_signs(rest >> (7 * (i / 8)) & 127);
      return iq3_xxs_code(kGridIq3Xxs[block.qs[b * 8 + i / 4]].values[i % 4], signs >> (i % 8));
    });
  }
  static ScaleBlock scales(const IQ3_XXS::Block& block) {
    return odd_scales(block.d, 8, [&](int sub) { return load_u32(block.rest + sub * 4) >> 28; });
  }
};
template <>
struct Parts<IQ3_S> {
  static void words(const IQ3_S::Block& block, int b, Words& out) {
    fill_codes(out, [&](int i) {
      const int g = b * 8 + i / 4, index = block.qs[g] | (block.qh[b] >> (g % 8) & 1) << 8;
      return iq3_s_code(kGridIq3S[index].values[i % 4], static_cast<uint32_t>(block.signs[g / 2]) >> (i % 8));
    });
  }
  static ScaleBlock scales(const IQ3_S::Block& block) {
    return odd_scales(block.d, 8, [&](int sub) { return block.scales[sub / 2] >> (sub % 2 * 4) & 15; });
  }
};

template <int Bits, int Group>
struct Parts<IntGroup<Bits, Group>> {
  static void words(const typename IntGroup<Bits, Group>::Block& block, int b, Words& out) {
    if constexpr (Bits == 4) {
      split_nibbles(block.qs + b * 16, out);
    } else {
      for (int i = 0; i < kWords; ++i) out[i] = word_at(block.qs + b * 32, i);
    }
  }
  static ScaleBlock scales(const typename IntGroup<Bits, Group>::Block& block) { return word_scale(block.scale_zero); }
};

// The scale is exact, as the word holds any fp16 number.
inline ScaleBlock scale_and_one(uint16_t d) { return word_scale(Int4G32::scale_zero(half_to_float(d), 1)); }

template <>
struct Parts<Q1_0> {
  static void words(const Q1_0::Block& block, int b, Words& out) {
    std::fill_n(out, kWords, 0);
    add_bits(load_u32(block.qs + b * 4), 1, out);
  }
  static ScaleBlock scales(const Q1_0::Block& block) { return scale_and_one(block.d); }
};
template <>
struct Parts<Q2_0> {
  static void words(const Q2_0::Block& block, int b, Words& out) {
    for (int i = 0; i < kWords; ++i) {
      const uint32_t four = block.qs[b * 8 + i];
      out[i] = (four & 3) | (four >> 2 & 3) << 8 | (four >> 4 & 3) << 16 | (four >> 6) << 24;
    }
  }
  static ScaleBlock scales(const Q2_0::Block& block) { return scale_and_one(block.d); }
};

}  // namespace sluice::quant
