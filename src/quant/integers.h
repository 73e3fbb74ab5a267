// Describes the block formats made of small integers and scales, for kernels that are templates over the format. A
// weight is scale * (stored - offset) - minimum, or scale * level[stored] where the format has levels.
#pragma once

#include "quant/all.h"

namespace sluice::quant {

// How scales are stored:
// kHalf      fp16 per block of 32
// kHalfMin   fp16 scale and fp16 minimum (added) per block
// kExponent  a power of two (E8M0) per block
// kSuper     fp16 per 256 weights times an int8 per sub-block
// kSuperMin  fp16 scale and minimum (subtracted) per 256 weights, each times a uint8 per sub-block
// kGroup     a scale and, instead of the offset, a zero point per group, in one word (quant/groups.h)
// kFloat     fp32 per sub-block
// kFloat8    E4M3 per sub-block times fp32 per row
enum class Scales { kHalf, kHalfMin, kExponent, kSuper, kSuperMin, kGroup, kFloat, kFloat8 };

// Functions are always inlined, so no copy compiled for one instruction set can be linked into code for another.
struct Integers {
  int low = 0, high = 0;  // bits stored together (2, 4 or 8), and high bits stored apart (0, 1 or 2)
  int offset = 0;         // offset of the stored values
  int sub_block = 0;      // weights per scale: 16, 32, or a whole group
  Scales scales = Scales::kHalf;

  [[gnu::always_inline]] constexpr bool two_level() const {
    return scales == Scales::kSuper || scales == Scales::kSuperMin;
  }
  [[gnu::always_inline]] constexpr bool mins() const {
    return scales == Scales::kHalfMin || scales == Scales::kSuperMin;
  }
};

// The default, for formats that are not made of integers.
template <class Format>
inline constexpr Integers kIntegers{};
template <>
inline constexpr Integers kIntegers<Q8_0>{8, 0, 128, 32, Scales::kHalf};
template <>
inline constexpr Integers kIntegers<Q4_0>{4, 0, 8, 32, Scales::kHalf};
template <>
inline constexpr Integers kIntegers<Q4_1>{4, 0, 0, 32, Scales::kHalfMin};
template <>
inline constexpr Integers kIntegers<Q5_0>{4, 1, 16, 32, Scales::kHalf};
template <>
inline constexpr Integers kIntegers<Q5_1>{4, 1, 0, 32, Scales::kHalfMin};
template <>
inline constexpr Integers kIntegers<Q2_K>{2, 0, 0, 16, Scales::kSuperMin};
template <>
inline constexpr Integers kIntegers<Q3_K>{2, 1, 4, 16, Scales::kSuper};
template <>
inline constexpr Integers kIntegers<Q4_K>{4, 0, 0, 32, Scales::kSuperMin};
template <>
inline constexpr Integers kIntegers<Q5_K>{4, 1, 0, 32, Scales::kSuperMin};
template <>
inline constexpr Integers kIntegers<Q6_K>{4, 2, 32, 16, Scales::kSuper};
template <>
inline constexpr Integers kIntegers<IQ4_NL>{4, 0, 128, 32, Scales::kHalf};
template <>
inline constexpr Integers kIntegers<IQ4_XS>{4, 0, 128, 32, Scales::kSuper};
template <>
inline constexpr Integers kIntegers<MXFP4>{4, 0, 12, 32, Scales::kExponent};
// A bit is stored as 0 or 2: these formats have the zero point 1.
template <>
inline constexpr Integers kIntegers<Q1_0>{2, 0, 0, 128, Scales::kGroup};
template <>
inline constexpr Integers kIntegers<Q2_0>{2, 0, 0, 64, Scales::kGroup};
template <int Bits, int Group>
inline constexpr Integers kIntegers<IntGroup<Bits, Group>>{Bits, 0, 0, Group, Scales::kGroup};

// Levels of the codes into which kernels translate codebook entries. IQ1 levels are in eighths: -1, 0 and 1, an eighth
// less or more.
inline constexpr int8_t kIq1Levels[16] = {-9, -7, -1, 1, 7, 9};
// Four magnitudes, then their negatives.
inline constexpr int8_t kIq2Levels[16] = {8, 25, 43, 0, -8, -25, -43};
inline constexpr int8_t kIq3XxsLevels[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr int8_t kIq3SLevels[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};

}  // namespace sluice::quant
