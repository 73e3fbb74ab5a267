// Decodes panels with the layout of int8_panels.h: quants to bytes, scales to fp32.
#pragma once

#include <type_traits>

#include "kernels/cpu/int8_panels.h"
#include "kernels/cpu/simd_int8.h"

namespace sluice::SLUICE_ISA {

using kernels::Int8Layout;
using kernels::kPanel;
using kernels::Scales;

inline constexpr int kRows = 8;                  // rows of four inputs in a block
inline constexpr int64_t kByteRow = 4 * kPanel;  // bytes of a row of the stored quants

// Values of a format's sixteen codes plus its offset, for formats whose codes are not the stored values themselves.
struct CodeValues {
  uint8_t values[16];
};
constexpr CodeValues offset_by(const int8_t (&levels)[16], int offset) {
  CodeValues out{};
  for (int i = 0; i < 16; ++i) out.values[i] = static_cast<uint8_t>(levels[i] + offset);
  return out;
}
struct NoCodeValues {};

template <class Format, class... Formats>
inline constexpr bool kIsOneOf = (std::is_same_v<Format, Formats> || ...);

template <class Format>
constexpr auto code_values() {
  namespace q = quant;
  constexpr int offset = kernels::kInt8Layout<Format>.offset;
  if constexpr (kIsOneOf<Format, q::IQ4_NL, q::IQ4_XS>)
    return offset_by(q::kIq4Levels, offset);
  else if constexpr (kIsOneOf<Format, q::MXFP4, q::NVFP4>)
    return offset_by(q::kFp4Levels, offset);
  else if constexpr (kIsOneOf<Format, q::IQ1_S, q::IQ1_M>)
    return offset_by(q::kIq1Levels, offset);
  else if constexpr (kIsOneOf<Format, q::IQ2_XXS, q::IQ2_XS, q::IQ2_S>)
    return offset_by(q::kIq2Levels, offset);
  else if constexpr (kIsOneOf<Format, q::IQ3_XXS>)
    return offset_by(q::kIq3XxsLevels, offset);
  else if constexpr (kIsOneOf<Format, q::IQ3_S>)
    return offset_by(q::kIq3SLevels, offset);
  else
    return NoCodeValues{};
}
template <class Format>
inline constexpr auto kCodeValues = code_values<Format>();

// Decodes the panels of one format.
template <class Format>
struct Int8Codec {
  static constexpr const Int8Layout& kLayout = kernels::kInt8Layout<Format>;
  static constexpr auto& kValues = kCodeValues<Format>;
  static constexpr bool kCoded = !std::is_same_v<std::remove_cvref_t<decltype(kValues)>, NoCodeValues>;
  static constexpr int kSubs = kLayout.subs();

  static constexpr int largest() {
    if constexpr (!kCoded) {
      return (1 << (kLayout.low + kLayout.high)) - 1;
    } else {
      int top = 0;
      for (int i = 0; i < 16; ++i) top = kValues.values[i] > top ? kValues.values[i] : top;
      return top;
    }
  }
  static constexpr bool kWide = largest() > kLargestByte;
  static constexpr int kTogether =
      pairs_together(largest()) < kRows / kSubs ? pairs_together(largest()) : kRows / kSubs;

  // Returns row I of a block's bytes in columns [V * kLanes, (V + 1) * kLanes) of a panel.
  template <int V, int I>
  SLUICE_INLINE static Bytes row(const std::byte* quants) {
    quants += V * int64_t{sizeof(Bytes)};
    const auto bits = [&](int64_t byte_row) { return load_bytes(quants + byte_row * kByteRow); };
    Bytes w;
    if constexpr (kLayout.low == 8) {
      w = bits(I);
    } else if constexpr (kLayout.low == 4) {
      w = bits_and(shift_right<I / 4 * 4>(bits(I % 4)), broadcast_byte(15));
    } else {
      w = bits_and(shift_right<I % 4 * 2>(bits(I / 4)), broadcast_byte(3));
    }
    if constexpr (kLayout.high == 1) {
      w = masked_or(shift_right<I - kLayout.low>(bits(kLayout.low)), broadcast_byte(1 << kLayout.low), w);
    } else if constexpr (kLayout.high == 2) {
      const Bytes high = shift_right<I % 4 * 2 - kLayout.low>(bits(kLayout.low + I / 4));
      w = masked_or(high, broadcast_byte(3 << kLayout.low), w);
    }
    if constexpr (kCoded) w = look_up(kValues.values, w);
    return w;
  }

  // Loads the scales (and minima, if any) of the 32 / sub_block parts of block `b` of a chunk.
  template <int V>
  SLUICE_INLINE static void scales(const std::byte* chunk, int64_t b, Vec (&scale)[2], Vec (&min)[2]) {
    const int64_t input = b * kernels::kQuantBlock;
    const std::byte* scale_block = chunk + input / kLayout.scale_block() * kLayout.scale_block_bytes();
    const auto half = [&](int i) {
      return load(reinterpret_cast<const Fp16*>(scale_block) + i * kPanel + V * kLanes, All{});
    };
    if constexpr (kLayout.scales == Scales::kExponent) {
      scale[0] = load_exponents(reinterpret_cast<const uint8_t*>(scale_block) + V * kLanes);
      return;
    }
    if constexpr (kLayout.scales == Scales::kGroup) {
      const Bytes word = load_bytes(scale_block + V * int64_t{sizeof(Bytes)});
      using Word = quant::IntGroup<4, 32>;
      scale[0] = lanes_as_float(bits_and(word, broadcast_lane(static_cast<int>(~Word::kZeroBits))));
      min[0] = zero() - scale[0] * lanes_to_float(bits_and(word, broadcast_lane(static_cast<int>(Word::kZeroBits))));
      return;
    }
    if constexpr (kLayout.halves > 1) {
      SLUICE_UNROLL
      for (int s = 0; s < kSubs; ++s) {
        scale[s] = half(static_cast<int>(input % kLayout.scale_block()) / kLayout.sub_block + s);
      }
      return;
    }
    scale[0] = half(0);
    if constexpr (kLayout.mins()) min[0] = half(1);
    if constexpr (kLayout.two_level()) {
      using Multiplier = std::conditional_t<kLayout.mins(), uint8_t, int8_t>;
      const auto* multipliers = reinterpret_cast<const Multiplier*>(scale_block) + (kLayout.mins() ? 4 : 2) * kPanel +
                                b * kSubs * kPanel + V * kLanes;
      const Vec super = kLayout.factor == 1.0f ? scale[0] : scale[0] * broadcast(kLayout.factor), super_min = min[0];
      SLUICE_UNROLL
      for (int s = 0; s < kSubs; ++s) {
        scale[s] = super * load_widened(multipliers + s * kPanel);
        if constexpr (kLayout.mins()) {
          min[s] = super_min * load_widened(multipliers + kLayout.multipliers() + s * kPanel);
        }
      }
    }
  }
};

}  // namespace sluice::SLUICE_ISA
