// The block formats that are small integers times scales, taken apart: the quants of 32 weights as words of unsigned
// bytes, and the scales of a block. Kernels repack these into layouts of their own.
#pragma once

#include <algorithm>
#include <cstring>

#include "quant/integers.h"

namespace sluice::quant {

inline constexpr int kWords = 8;  // of four inputs, in a block of 32

// What is stored for one block of one column: eight words of unsigned quants.
using Words = uint32_t[kWords];

inline uint32_t word_at(const uint8_t* p, int i) { return load_u32(p + 4 * i); }
constexpr uint32_t every_byte(uint32_t byte) { return byte * 0x01010101u; }

// 32 nibbles, element i beside element i + 16, as the 32-element formats store them.
inline void split_nibbles(const uint8_t* p, Words& words) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t both = word_at(p, i);
    words[i] = both & every_byte(15);
    words[i + 4] = both >> 4 & every_byte(15);
  }
}

// 32 bytes' bits [shift, shift + bits).
inline void take_bits(const uint8_t* p, int shift, uint32_t mask, Words& words) {
  for (int i = 0; i < kWords; ++i) words[i] = word_at(p, i) >> shift & every_byte(mask);
}

// Adds the bits `bit` of 32 bytes to the elements, at bit `to`.
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

// Scales of a block: numbers of 16 bits, then multipliers.
struct RecordScales {
  uint16_t halves[2];          // of kGroup: the word
  uint8_t multipliers[2][16];  // of scales (int8 for kSuper), of minima
};

inline uint16_t negative_half(uint16_t half) { return half ^ 0x8000; }

// A format: the quants of block `b` of a record, the record's scales.
template <class Codec>
struct Parts;

template <>
struct Parts<Q8_0> {
  static void words(const Q8_0::Block& block, int, Words& out) {
    for (int i = 0; i < kWords; ++i) {
      out[i] = word_at(reinterpret_cast<const uint8_t*>(block.qs), i) ^ every_byte(0x80);
    }
  }
  static RecordScales scales(const Q8_0::Block& block) { return {.halves = {block.d}, .multipliers = {}}; }
};

template <class Codec>
struct NibbleParts {
  static void words(const typename Codec::Block& block, int, Words& out) {
    split_nibbles(block.qs, out);
    if constexpr (kIntegers<Codec>.high == 1) add_bits(load_u32(block.qh), 4, out);
  }
  static RecordScales scales(const typename Codec::Block& block) {
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
  static RecordScales scales(const MXFP4::Block& block) { return {.halves = {block.e}, .multipliers = {}}; }
};

template <>
struct Parts<Q2_K> {
  static void words(const Q2_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
  }
  static RecordScales scales(const Q2_K::Block& block) {
    RecordScales s{.halves = {block.d, negative_half(block.dmin)}, .multipliers = {}};
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
  static RecordScales scales(const Q3_K::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 16; ++i) {
      const int low = block.scales[i % 8] >> (i / 8 * 4) & 15, high = block.scales[8 + i % 4] >> (i / 4 * 2) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
  }
};

inline RecordScales super_scales(uint16_t d, uint16_t dmin, const uint8_t (&packed)[12]) {
  RecordScales s{.halves = {d, negative_half(dmin)}, .multipliers = {}};
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
  static RecordScales scales(const Q4_K::Block& block) { return super_scales(block.d, block.dmin, block.scales); }
};

template <>
struct Parts<Q5_K> {
  static void words(const Q5_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 2 * 32, b % 2 * 4, 15, out);
    add_plane(block.qh, b, 4, out);
  }
  static RecordScales scales(const Q5_K::Block& block) { return super_scales(block.d, block.dmin, block.scales); }
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
  static RecordScales scales(const Q6_K::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    std::memcpy(s.multipliers[0], block.scales, 16);
    return s;
  }
};

template <>
struct Parts<IQ4_XS> {
  static void words(const IQ4_XS::Block& block, int b, Words& out) { split_nibbles(block.qs + b * 16, out); }
  static RecordScales scales(const IQ4_XS::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 8; ++i) {
      const int low = block.scales_l[i / 2] >> (i % 2 * 4) & 15, high = block.scales_h >> (2 * i) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
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
  static RecordScales scales(const typename IntGroup<Bits, Group>::Block& block) {
    return {.halves = {static_cast<uint16_t>(block.scale_zero), static_cast<uint16_t>(block.scale_zero >> 16)},
            .multipliers = {}};
  }
};

}  // namespace sluice::quant
