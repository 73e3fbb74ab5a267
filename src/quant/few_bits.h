// ggml's formats of one and two bits: integers times one fp16 scale d per block.
#pragma once

#include "quant/codec.h"

namespace sluice::quant {

// d or -d: bit i % 8 of byte i / 8 is set for d.
struct Q1_0 {
  static constexpr int kElements = 128;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int i = 0; i < kElements; ++i) out[i] = (block.qs[i / 8] >> (i % 8) & 1) != 0 ? d : -d;
  }
  static constexpr TypeInfo kType = read_only_type<Q1_0, Block>("q1_0", 41, kElements);
};

// d * (q - 1), where q has 2 bits, four of them in a byte, the first one lowest.
struct Q2_0 {
  static constexpr int kElements = 64;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int i = 0; i < kElements; ++i) out[i] = d * static_cast<float>((block.qs[i / 4] >> (i % 4 * 2) & 3) - 1);
  }
  static constexpr TypeInfo kType = read_only_type<Q2_0, Block>("q2_0", 42, kElements);
};

}  // namespace sluice::quant
