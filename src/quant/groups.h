// Block formats for quantized checkpoints other than GGUF. Integers have a scale and a zero point per group of inputs
// (GPTQ: Frantar et al. 2022, arXiv:2210.17323; AWQ: Lin et al. 2023, arXiv:2306.00978; compressed-tensors). 8-bit
// floats have a scale. A scale of a channel, a tensor or a 128 x 128 block is repeated in every block it covers. GGUF
// files do not use these formats.
#pragma once

#include <cmath>

#include "quant/codec.h"

namespace sluice::quant {

// A weight is scale * (q - zero), where q has Bits bits. Scale and zero point share a word. The upper 23 bits are those
// of the scale as fp32, which can hold any fp16 or bf16 number. The lower 9 bits hold the zero point, 0 to 256.
template <int Bits, int Group>
struct IntGroup {
  static_assert((Bits == 4 || Bits == 8) && Group % 32 == 0);
  static constexpr int kElements = Group, kBits = Bits;
  static constexpr uint32_t kZeroBits = 0x1ff;
  struct [[gnu::packed]] Block {
    uint32_t scale_zero;
    uint8_t qs[Group * Bits / 8];  // 4 bits: 16 bytes per 32 weights, elements i and i + 16
  };
  SLUICE_CODEC float scale(uint32_t word) { return __builtin_bit_cast(float, word & ~kZeroBits); }
  SLUICE_CODEC int zero(uint32_t word) { return static_cast<int>(word & kZeroBits); }
  // Packs scale and zero point. The scale is rounded to the nearest number with 15 significant bits.
  SLUICE_CODEC uint32_t scale_zero(float scale, int zero) {
    const auto bits = __builtin_bit_cast(uint32_t, scale);
    return ((bits + (kZeroBits >> 1) + (bits >> 9 & 1)) & ~kZeroBits) | static_cast<uint32_t>(zero);
  }
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = scale(block.scale_zero);
    const int z = zero(block.scale_zero);
    if constexpr (Bits == 8) {
      for (int i = 0; i < Group; ++i) out[i] = d * static_cast<float>(block.qs[i] - z);
    } else {
      for (int sub = 0; sub < Group / 32; ++sub) {
        const uint8_t* q = block.qs + sub * 16;
        for (int i = 0; i < 16; ++i) out[sub * 32 + i] = d * static_cast<float>((q[i] & 15) - z);
        for (int i = 0; i < 16; ++i) out[sub * 32 + 16 + i] = d * static_cast<float>((q[i] >> 4) - z);
      }
    }
  }
  // Rounds to the nearest of the levels between the group's extremes. Zero is one of the levels.
  static void quantize(const float* in, Block& block);
  static constexpr std::string_view kName = Bits == 8     ? "int8_g128"
                                            : Group == 32 ? "int4_g32"
                                            : Group == 64 ? "int4_g64"
                                                          : "int4_g128";
  static constexpr TypeInfo kType = block_type<IntGroup, Block>(kName, -1, kElements);
};
using Int4G32 = IntGroup<4, 32>;
using Int4G64 = IntGroup<4, 64>;
using Int4G128 = IntGroup<4, 128>;
using Int8G128 = IntGroup<8, 128>;

// A weight is scale * q, where q is E4M3 without infinities (OCP 8-bit Floating Point, Micikevicius et al. 2022,
// arXiv:2209.05433).
struct Fp8 {
  static constexpr int kElements = 128;
  struct [[gnu::packed]] Block {
    float scale;
    uint8_t qs[kElements];
  };
  SLUICE_CODEC float value(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24, magnitude = bits & 0x7f;
    const float normal = __builtin_bit_cast(float, (magnitude << 20) + (120u << 23));
    const float subnormal = static_cast<float>(magnitude) * 0x1.0p-9f;
    const uint32_t found = __builtin_bit_cast(uint32_t, magnitude < 8 ? subnormal : normal);
    return __builtin_bit_cast(float, sign | (magnitude == 0x7f ? 0x7fc00000u : found));
  }
  // Rounds to the nearest number, ties to even. Larger values saturate to 448, the largest number.
  static uint8_t nearest(float x) { return float_to_fp8(x); }
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = block.scale;
    for (int i = 0; i < kElements; ++i) out[i] = d * value(block.qs[i]);
  }
  // The largest magnitude of a block maps to 448. quantize_row uses one scale for `count` elements.
  static void quantize(const float* in, Block& block) { quantize_row(in, &block, kElements); }
  static void quantize_row(const float* in, Block* blocks, size_t count);
  static constexpr TypeInfo kType = block_type<Fp8, Block>("fp8_e4m3", -1, kElements);
};

}  // namespace sluice::quant
