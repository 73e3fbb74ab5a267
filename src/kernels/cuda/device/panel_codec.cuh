// How a warp reads packed panels (matmul/panel_layout.h): K-slices into registers, weights as the a operand of a bf16
// matmul (small integers and levels are exact there), and the scales that its sums are multiplied by. A weight is
//   scale * (operand - base) + minimum.
// Every codec has
//   kFold                    inputs that share scales, at most a slice
//   kShifted                 whether base or minimum may differ from zero
//   kMinima                  whether minimum may differ from zero
//   struct Slice             what a lane holds of a slice
//   kRowsApart               whether the words that lanes load of a slice lie in separate rows. If not, a Slice has
//                            kWords words, and the codec has
//     for_words(number, f)   calls f<n>(address) for every n consecutive words of a slice of the first panel that this
//                            lane holds; n is 1, 2 or 4
//     for_parts(slice, f)    calls f(words) for the same words of a slice in registers
//   Codec(panels, k, lane)   `panels` is the first panel
//   load(slice, at, number)  loads a slice of the panel that begins `at` bytes behind the first one
//   read(slice, ...)         reads a slice from shared memory; panels of integers and levels only
//   weights(slice, step, a)  the a operand of a step of 16 inputs; see mma() for its order
//   lowered(slice, step, a)  the same, times 2^-kLowered. Where kLowered is not 0, operands are subnormal numbers,
//                            which take fewer instructions to make
//   bytes(slice, half, a)    if kBytes: the a operand of 32 inputs, of steps 2 half and 2 half + 1, in int8. It is
//                            kBytesBelow less than that of weights(); every four inputs come in the order 0, 2, 1, 3
//   kRounded                 whether operands are rounded. If so, exact(slice, step, r, to) gives the four unrounded
//                            weights of output g + 8 r; called by whole warps
//   factors(slice, r, fold)  the factors of output g + 8 r for inputs [kFold * fold, kFold * (fold + 1)) of the slice
//   kExponents               whether scales are powers of two and there is nothing else. If so, scale_pair(slice, r,
//                            fold) gives the scale twice, in bf16
//   quad(step, t)            lane t takes inputs 4 quad .. 4 quad + 3 of the slice at this step
//   slot(quad)               the inverse: 4 step + t
#pragma once

#include <bit>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/matmul/panel_layout.h"

namespace sluice::cuda {

struct Factors {
  float scale = 0.0f, base = 0.0f, minimum = 0.0f;
};

__device__ inline float half_at(uint32_t pair, int i) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> (16 * i))));
}
// Byte i of a word as a number. 2^23 + byte is exact, and cheaper than a conversion.
__device__ inline float unsigned_byte(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | i)) - 8388608.0f;
}
__device__ inline float signed_byte(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 | i)) - 8388736.0f;
}

__device__ inline uint32_t subtract_bf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 difference =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&difference);
}
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// x & mask | bits, in one instruction.
__device__ inline uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
}

inline constexpr uint32_t k128 = 0x43004300u;  // two of 128 in bf16, whose last bit is worth 1

// Two bytes of two's complement in bits 0 .. 7 and 16 .. 23; other bits are ignored. Each is 128 + the lower seven
// bits, less 128 or, if negative, 256.
__device__ inline uint32_t signed_bytes(uint32_t pair) {
  return subtract_bf16x2(masked_or(pair, 0x007f007fu, k128), masked_or(pair, 0x00800080u, k128));
}

// `Words` words of a slice as an array.
template <int Words>
__device__ inline uint32_t (&words_at(uint32_t* first))[Words] {
  return *reinterpret_cast<uint32_t(*)[Words]>(first);
}

template <int Words>
__device__ inline void load_words(uint32_t (&to)[Words], const std::byte* from) {
  static_assert(Words == 1 || Words == 2 || Words == 4);
  if constexpr (Words == 1) {
    to[0] = __ldg(reinterpret_cast<const uint32_t*>(from));
  } else if constexpr (Words == 2) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(from));
    to[0] = v.x, to[1] = v.y;
  } else {
    const uint4 v = load_streaming(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

// Reads words from shared memory.
template <int Words>
__device__ inline void read_words(uint32_t (&to)[Words], uint32_t address) {
  static_assert(Words == 1 || Words == 2 || Words == 4);
  if constexpr (Words == 1) {
    to[0] = load_shared<uint32_t>(address);
  } else if constexpr (Words == 2) {
    const auto v = load_shared<uint2>(address);
    to[0] = v.x, to[1] = v.y;
  } else {
    const auto v = load_shared<uint4>(address);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
}

// Maps four nibbles to the 8-bit levels of IQ4.
__device__ inline uint32_t level_bytes(uint32_t four) {
  const uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, four & 0x7777u);
  const uint32_t high = __byte_perm(0x26190d01u, 0x71594535u, four & 0x7777u);
  return __byte_perm(low, high, 0x3210u | (four >> 1 & 0x4444u));
}

// Multiplies a pair of bf16 by 2^exponent.
template <int exponent>
__device__ inline uint32_t lifted(uint32_t pair) {
  if constexpr (exponent == 0) return pair;
  return multiply_bf16x2(pair, static_cast<uint32_t>(127 + exponent) * 0x00800080u);
}

// The bits of `a` where the mask has ones, those of `b` elsewhere.
__device__ inline uint32_t choose(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(out) : "r"(mask), "r"(a), "r"(b));
  return out;
}
__device__ inline uint32_t turned(uint32_t x, int left) { return __funnelshift_l(x, x, left); }

// The levels of NF4 times a factor, as tables of their bytes. No level but 0 and 1 is a bf16 number. With this factor,
// rounding costs least: at most 1.7e-3 of a level, 6.5e-4 in the mean. Without a factor it costs 3.1e-3 and 1.1e-3.
inline constexpr float kNf4Factor = 1.43675f;
struct LevelBytes {
  uint32_t low[4], high[4];
};
constexpr LevelBytes nf4_operands() {
  LevelBytes bytes{};
  for (int i = 0; i < 16; ++i) {
    const auto bits = std::bit_cast<uint32_t>(kNf4Factor * quant::kNf4Levels[i]);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    bytes.low[i / 4] |= (rounded & 0xff) << (i % 4 * 8);
    bytes.high[i / 4] |= (rounded >> 8) << (i % 4 * 8);
  }
  return bytes;
}

// Looks up four codes in a table of bytes. `lower` has their lower three bits; `choose` selects one half of the table
// by the fourth bit.
__device__ inline uint32_t bytes_of(const uint32_t (&table)[4], uint32_t lower, uint32_t choose) {
  return __byte_perm(__byte_perm(table[0], table[1], lower), __byte_perm(table[2], table[3], lower), choose);
}

template <class Codec>
class PanelCodec {
 public:
  static constexpr quant::Integers kFormat = kPanelFormat<Codec>;
  static constexpr PanelLayout kLayout = panel_layout<Codec>();
  static constexpr bool kFp4 = kFp4Panels<Codec>;
  static constexpr bool kRowsApart = false;
  static constexpr bool kExponents = kFormat.scales == quant::Scales::kExponent;
  static constexpr int kLowered = !kFp4 ? 0 : kExponents ? 125 : 126;
  static constexpr bool kRounded = std::is_same_v<Codec, quant::NF4>;
  static constexpr bool kIq4 = std::is_same_v<Codec, quant::IQ4_NL> || std::is_same_v<Codec, quant::IQ4_XS>;
  static constexpr bool kGroup = kFormat.scales == quant::Scales::kGroup;
  static constexpr int kFold = kFormat.sub_block < kPanelSlice ? kFormat.sub_block : kPanelSlice;
  static constexpr bool kLevels = kFp4 || kIq4 || kRounded;
  // The difference between the operands of weights() and the stored values.
  static constexpr int kOperandOffset = kFormat.low == 8 ? -128 : kLevels ? 0 : 128;
  static constexpr int kBase = kLevels ? 0 : kFormat.offset + kOperandOffset;
  static constexpr bool kMinima = kFormat.mins();
  static constexpr bool kShifted = kBase != 0 || kMinima || kGroup;

  static constexpr int kWords = kLayout.low + kLayout.high + kLayout.scale_words + kLayout.super_scale_words;
  struct Slice {
    uint32_t low[kLayout.low], high[kLayout.high == 0 ? 1 : kLayout.high];
    uint32_t scales[kLayout.scale_words], super_scales[kLayout.super_scale_words == 0 ? 1 : kLayout.super_scale_words];
  };

  __device__ PanelCodec(const std::byte* panel, int64_t k, int lane) {
    const int64_t slices = panel_slices(k);
    low_ = panel + lane * (kFormat.low == 2 ? 8 : 16);
    high_ = panel + kLayout.low * 128 + lane * 4 * kLayout.high;
    scales_ = panel + panel_layout<Codec>().scales_at(slices) + lane / 4 * 4 * kLayout.scale_words;
    super_scales_ = panel + panel_layout<Codec>().super_scales_at(slices) + lane / 4 * 4 * kLayout.super_scale_words;
    if constexpr (kRounded) {
      constexpr auto kAll = quant::kNf4Levels;  // a local constant: device code cannot index a namespace-scope
                                                // constexpr array
      level_ = kAll[lane % 16];
    }
  }

  __device__ void load(Slice& to, int64_t panel, int slice) const {
    parts(to, panel, slice, [](auto& words, const std::byte* from) { load_words(words, from); });
  }

  // See the list above. for_words() and for_parts() visit words in the same order.
  template <class F>
  __device__ void for_words(int slice, F&& f) const {
    Slice none;
    parts(none, 0, slice, [&](auto& words, const std::byte* from) { f.template operator()<sizeof(words) / 4>(from); });
  }
  template <class F>
  static __device__ void for_parts(Slice& slice, F&& f) {
#pragma unroll
    for (int i = 0; i < kLayout.low; i += kLowWords) f(words_at<kLowWords>(slice.low + i));
    if constexpr (kLayout.high > 0) f(slice.high);
    f(slice.scales);
    if constexpr (kLayout.super_scale_words > 0) f(slice.super_scales);
  }

  // Reads a slice from shared memory, with its scales and super-scales at the given addresses.
  static __device__ void read(Slice& to, uint32_t slice, uint32_t scales, uint32_t super_scales) {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (kFormat.low == 2) {
      read_words(to.low, slice + lane * 8);
    } else {
#pragma unroll
      for (int i = 0; i < kLayout.low / 4; ++i) {
        const auto v = load_shared<uint4>(slice + lane * 16 + 512 * i);
        to.low[4 * i] = v.x, to.low[4 * i + 1] = v.y, to.low[4 * i + 2] = v.z, to.low[4 * i + 3] = v.w;
      }
    }
    if constexpr (kLayout.high > 0) read_words(to.high, slice + kLayout.low * 128 + lane * 4 * kLayout.high);
    read_words(to.scales, scales + lane / 4 * 4 * kLayout.scale_words);
    if constexpr (kLayout.super_scale_words > 0)
      read_words(to.super_scales, super_scales + lane / 4 * 4 * kLayout.super_scale_words);
  }

  static __device__ void weights(const Slice& slice, int step, uint32_t (&a)[4]) {
    lowered(slice, step, a);
#pragma unroll
    for (uint32_t& pair : a) pair = lifted<kLowered>(pair);
  }

  static __device__ void lowered(const Slice& slice, int step, uint32_t (&a)[4]) {
    if constexpr (kFormat.low == 8) {
#pragma unroll
      for (int p = 0; p < 4; ++p) a[p] = signed_bytes(slice.low[2 * step + p / 2] >> (p % 2 * 8));
    } else if constexpr (kIq4) {
      const uint32_t first = level_bytes(slice.low[step]), second = level_bytes(slice.low[step] >> 16);
#pragma unroll
      for (int p = 0; p < 4; ++p) a[p] = signed_bytes(__byte_perm(first, second, (4 + p) << 8 | p));
    } else if constexpr (kRounded) {
      constexpr LevelBytes kBytes = nf4_operands();
      const uint32_t lower = slice.low[step] & 0x77777777u,
                     choose = masked_or(slice.low[step] >> 1, 0x44444444u, 0x32103210u);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = bytes_of(kBytes.low, lower >> (16 * half), choose >> (16 * half));
        const uint32_t high = bytes_of(kBytes.high, lower >> (16 * half), choose >> (16 * half));
        a[2 * half] = __byte_perm(low, high, 0x5140), a[2 * half + 1] = __byte_perm(low, high, 0x7362);
      }
    } else if constexpr (kFp4) {
#pragma unroll
      for (int p = 0; p < 3; ++p) a[p] = turned(slice.low[step], Fp4Words::turn(p)) & kFp4Pair;
      const int pair = step / 2 * 2;
      const uint32_t second = turned(slice.low[pair + 1], Fp4Words::kSecond);
      const uint32_t last = choose(Fp4Words::kFirstRest, slice.low[pair], second);
      a[3] = turned(last, Fp4Words::last_turn(step % 2)) & kFp4Pair;
    } else {
#pragma unroll
      for (int p = 0; p < 4; ++p) a[p] = above_128(slice, step, p);
    }
  }

  static constexpr bool kBytes = !kRounded && !kFp4;
  static constexpr int kSetsOfPair = sets_of_pair<Codec>();
  static constexpr int kBytesBelow = kLevels || kFormat.low == 8 ? 0 : 128;
  static __device__ void bytes(const Slice& slice, int half, uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = 2 * half + i;
      uint32_t &first = a[2 * i], &second = a[2 * i + 1];  // for outputs g and g + 8
      if constexpr (kFormat.low == 8) {
        const uint32_t low = slice.low[2 * step], high = slice.low[2 * step + 1];
        first = __byte_perm(low, high, 0x6240), second = __byte_perm(low, high, 0x7351);
      } else if constexpr (kIq4) {
        const uint32_t low = level_bytes(slice.low[step]), high = level_bytes(slice.low[step] >> 16);
        first = __byte_perm(low, high, 0x6420), second = __byte_perm(low, high, 0x7531);
      } else if constexpr (kFormat.low == 4 && kFormat.high == 0) {
        first = slice.low[step] & 0x0f0f0f0fu, second = slice.low[step] >> 4 & 0x0f0f0f0fu;
      } else {
        uint32_t pairs[4];
        weights(slice, step, pairs);
        first = __byte_perm(pairs[0], pairs[2], 0x6240), second = __byte_perm(pairs[1], pairs[3], 0x6240);
      }
    }
  }

  static __device__ Factors factors(const Slice& slice, int r, int fold) {
    using quant::Scales;
    if constexpr (kFormat.scales == Scales::kHalf) {
      return {half_at(slice.scales[r], fold), kBase, 0.0f};
    } else if constexpr (kFormat.scales == Scales::kHalfMin) {
      return {half_at(slice.scales[2 * r + fold], 0), kBase, half_at(slice.scales[2 * r + fold], 1)};
    } else if constexpr (kFormat.scales == Scales::kExponent) {
      return {__uint_as_float(shift(slice.scales[0], 23 - 8 * (2 * r + fold)) & 0x7f800000u), 0.0f, 0.0f};
    } else if constexpr (kFormat.scales == Scales::kFloat) {
      return {__uint_as_float(slice.scales[r]) * (1.0f / kNf4Factor), 0.0f, 0.0f};
    } else if constexpr (kFormat.scales == Scales::kFloat8) {
      // Moves exponent and mantissa to their places in fp32; 2^120 corrects the exponent.
      const uint32_t bits = shift(slice.scales[r], 20 - 8 * fold) & 0x07f00000u;
      return {__uint_as_float(bits) * 0x1p120f * __uint_as_float(slice.super_scales[r]), 0.0f, 0.0f};
    } else if constexpr (kGroup) {
      const uint32_t word = slice.scales[kFold < kPanelSlice ? 2 * r + fold : r];
      constexpr uint32_t kZeroBits = quant::Int4G32::kZeroBits;
      const int zero = static_cast<int>(word & kZeroBits) + kOperandOffset;
      return {__uint_as_float(word & ~kZeroBits), static_cast<float>(zero), 0.0f};
    } else if constexpr (kFormat.scales == Scales::kSuper) {
      const int byte = r * (kPanelSlice / kFold) + fold;
      return {half_at(slice.super_scales[0], r) * signed_byte(slice.scales[byte / 4], byte % 4), kBase, 0.0f};
    } else {
      constexpr int kSubs = kPanelSlice / kFold;
      const int scale = r * kSubs + fold, minimum = (2 + r) * kSubs + fold;
      return {half_at(slice.super_scales[r], 0) * unsigned_byte(slice.scales[scale / 4], scale % 4), kBase,
              half_at(slice.super_scales[r], 1) * unsigned_byte(slice.scales[minimum / 4], minimum % 4)};
    }
  }

  static __device__ uint32_t scale_pair(const Slice& slice, int r, int fold) {
    static_assert(kExponents);
    return __byte_perm(slice.scales[0], 0, 0x4040u + 0x0101u * static_cast<unsigned>(2 * r + fold)) << 7;
  }

  // Each lane holds one level, and codes select among the lanes.
  __device__ void exact(const Slice& slice, int step, int r, float (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int code = static_cast<int>(slice.low[step] >> (16 * (i / 2) + 8 * r + 4 * (i % 2))) & 15;
      to[i] = __uint_as_float(slice.scales[r]) * __shfl_sync(0xffffffffu, level_, code);
    }
  }

  static __device__ constexpr int quad(int step, int t) { return step * 4 + t; }
  static __device__ constexpr int slot(int quad) { return quad; }

 private:
  // Pair p of a step as stored, in bits 0 .. 6 and 16 .. 22, plus 128.
  static __device__ uint32_t above_128(const Slice& slice, int step, int p) {
    constexpr uint32_t kOne = 0x00010001u, kTwo = 0x00030003u;
    const int place = step % 2 * 8 + 2 * p;  // shift of a pair of two-bit values
    uint32_t bits = k128;
    if constexpr (kFormat.high == 2) {
      bits = masked_or(shift(slice.high[step / 2], kFormat.low - place), kTwo << kFormat.low, bits);
    } else if constexpr (kFormat.high == 1) {
      bits = masked_or(shift(slice.high[0], kFormat.low - (4 * step + p)), kOne << kFormat.low, bits);
    }
    if constexpr (kFormat.low == 4) return masked_or(slice.low[step] >> (4 * p), 0x000f000fu, bits);
    return masked_or(slice.low[step / 2] >> place, kTwo, bits);
  }
  static constexpr int kLowWords = kFormat.low == 2 ? 2 : 4;  // consecutive words

  // Calls f(words of the slice, their address in memory).
  template <class F>
  __device__ void parts(Slice& to, int64_t panel, int slice, F&& f) const {
    constexpr int64_t kSliceBytes = kLayout.slice_bytes();
    constexpr int64_t kScaleBytes = kLayout.scale_bytes(), kSuperScaleBytes = kLayout.super_scale_bytes();
    const int64_t at = panel + slice * kSliceBytes;
#pragma unroll
    for (int i = 0; i < kLayout.low; i += kLowWords) f(words_at<kLowWords>(to.low + i), low_ + at + 128 * i);
    if constexpr (kLayout.high > 0) f(to.high, high_ + at);
    f(to.scales, scales_ + panel + int64_t{slice / kLayout.scale_slices} * kScaleBytes);
    if constexpr (kLayout.super_scale_words > 0) {
      f(to.super_scales, super_scales_ + panel + int64_t{slice / kLayout.super_scale_slices} * kSuperScaleBytes);
    }
  }
  static __device__ uint32_t shift(uint32_t x, int left) { return left >= 0 ? x << left : x >> -left; }

  const std::byte *low_, *high_, *scales_, *super_scales_;
  float level_ = 0.0f;  // for exact()
};

// Rows of 8-bit floats, each followed by its scales.
template <>
class PanelCodec<quant::Fp8> {
 public:
  static constexpr int kFold = kPanelSlice, kLowered = 120;
  static constexpr bool kRowsApart = true, kShifted = false, kMinima = false, kRounded = false, kBytes = false;
  static constexpr bool kExponents = false;

  struct Slice {
    uint32_t rows[2][4];
    float scales[2];
  };

  __device__ PanelCodec(const std::byte* panel, int64_t k, int lane) {
    const int64_t pitch = fp8_row_bytes(k);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::byte* row = panel + (lane / 4 + r * kPairsOfRows) * pitch;
      weights_[r] = row + lane % 4 * 16;
      scales_[r] = row + k;
    }
  }

  __device__ void load(Slice& to, int64_t panel, int slice) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      constexpr int kSlices = quant::Fp8::kElements / kPanelSlice;
      load_words(to.rows[r], weights_[r] + panel + int64_t{slice} * kPanelSlice);
      to.scales[r] = __ldg(reinterpret_cast<const float*>(scales_[r] + panel) + slice / kSlices);
    }
  }

  static __device__ void weights(const Slice& slice, int step, uint32_t (&a)[4]) {
    lowered(slice, step, a);
#pragma unroll
    for (uint32_t& pair : a) pair = lifted<kLowered>(pair);
  }

  static __device__ void lowered(const Slice& slice, int step, uint32_t (&a)[4]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      // Moves a byte to the top of each half, then exponent and mantissa to their places in bf16, which is lower by
      // 2^120.
      const uint32_t top = __byte_perm(slice.rows[p % 2][step], 0, p < 2 ? 0x1404 : 0x3424);
      a[p] = masked_or(top, 0x80008000u, top >> 4 & 0x07f007f0u);
    }
  }

  static __device__ Factors factors(const Slice& slice, int r, int) { return {slice.scales[r], 0.0f, 0.0f}; }

  static __device__ constexpr int quad(int step, int t) { return t * 4 + step; }
  static __device__ constexpr int slot(int quad) { return quad % 4 * 4 + quad / 4; }

 private:
  const std::byte* weights_[2];
  const std::byte* scales_[2];
};

}  // namespace sluice::cuda
