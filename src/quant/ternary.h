// Formats with weights of -1, 0 and 1 times one scale per 256 (BitNet b1.58, Ma et al. 2024, arXiv:2402.17764).
#pragma once

#include "quant/codec.h"

namespace sluice::quant {

// Packs five digits per byte. The byte is ceil(256 / 243 * n), where n is the number in base 3. Multiplying it by 3^i
// modulo 256 brings digit i to the top.
struct TQ1_0 {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t qs[48];  // 32 bytes of five groups of 32, then 16 bytes of five groups of 16
    uint8_t qh[4];   // four groups of 4
    uint16_t d;
  };
  SLUICE_CODEC int digit(uint8_t byte, int power) { return (static_cast<uint8_t>(byte * power) * 3 >> 8) - 1; }
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    const float d = half_to_float(block.d);
    for (int g = 0; g < 5; ++g) {
      for (int i = 0; i < 32; ++i) out[g * 32 + i] = d * static_cast<float>(digit(block.qs[i], kPowers[g]));
    }
    for (int g = 0; g < 5; ++g) {
      for (int i = 0; i < 16; ++i) out[160 + g * 16 + i] = d * static_cast<float>(digit(block.qs[32 + i], kPowers[g]));
    }
    for (int g = 0; g < 4; ++g) {
      for (int i = 0; i < 4; ++i) out[240 + g * 4 + i] = d * static_cast<float>(digit(block.qh[i], kPowers[g]));
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<TQ1_0, Block>("tq1_0", 34, kElements);
};

struct TQ2_0 {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t qs[64];  // two halves of 128 elements: four groups of 32 in the bit pairs of 32 bytes
    uint16_t d;
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int group = 0; group < 8; ++group) {
      const uint8_t* q = block.qs + group / 4 * 32;
      const int shift = group % 4 * 2;
      for (int i = 0; i < 32; ++i) out[group * 32 + i] = d * static_cast<float>((q[i] >> shift & 3) - 1);
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<TQ2_0, Block>("tq2_0", 35, kElements);
};

}  // namespace sluice::quant
