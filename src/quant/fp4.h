// 4-bit floats (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) that share a small float as scale per group:
// MXFP4 (OCP Microscaling Formats 1.0) and NVFP4. Levels are stored doubled, scales halved.
#pragma once

#include <array>

#include "quant/codec.h"

namespace sluice::quant {

inline constexpr int8_t kFp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 weights that share a power of two as scale (E8M0).
struct MXFP4 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint8_t e;
    uint8_t qs[16];  // elements i and i + 16
  };
  // Returns 2^(e - 127) / 2, which is subnormal for e < 2.
  SLUICE_CODEC float scale(uint8_t e) {
    return __builtin_bit_cast(float, e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
  }
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr auto kLevels = std::to_array(kFp4Levels);  // local copy: kernels cannot index kFp4Levels
    const float d = scale(block.e);
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(kLevels[block.qs[i] & 15]);
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(kLevels[block.qs[i] >> 4]);
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<MXFP4, Block>("mxfp4", 39, kElements);
};

// 64 weights in four groups of 16, each with an unsigned E4M3 scale (bias 7).
struct NVFP4 {
  static constexpr int kElements = 64;
  struct [[gnu::packed]] Block {
    uint8_t d[4];
    uint8_t qs[32];  // 8 bytes per group: elements i and i + 8
  };
  // Returns half of the E4M3 number. Its NaN, 0x7f, counts as zero, as in the format's reference.
  SLUICE_CODEC float scale(uint8_t bits) {
    if (bits == 0x7f) return 0.0f;
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (exponent == 0) return static_cast<float>(mantissa) * 0x1.0p-10f;
    return __builtin_bit_cast(float, static_cast<uint32_t>(exponent - 8 + 127) << 23 | mantissa << 20);
  }
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr auto kLevels = std::to_array(kFp4Levels);
    for (int g = 0; g < 4; ++g) {
      const float d = scale(block.d[g]);
      const uint8_t* q = block.qs + g * 8;
      for (int i = 0; i < 8; ++i) out[g * 16 + i] = d * static_cast<float>(kLevels[q[i] & 15]);
      for (int i = 0; i < 8; ++i) out[g * 16 + 8 + i] = d * static_cast<float>(kLevels[q[i] >> 4]);
    }
  }
  static constexpr TypeInfo kType = read_only_type<NVFP4, Block>("nvfp4", 40, kElements);
};

// NVFP4 in checkpoints for NVIDIA GPUs. The whole tensor has one scale, which is repeated in every block.
struct ScaledNVFP4 {
  static constexpr int kElements = NVFP4::kElements;
  struct [[gnu::packed]] Block {
    float scale;
    NVFP4::Block groups;
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    NVFP4::dequantize(block.groups, out);
    const float d = block.scale;
    for (int i = 0; i < kElements; ++i) out[i] *= d;
  }
  static constexpr TypeInfo kType = read_only_type<ScaledNVFP4, Block>("nvfp4_scaled", -1, kElements);
};

}  // namespace sluice::quant
