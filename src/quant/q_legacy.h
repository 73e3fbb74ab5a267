// ggml's first formats: 32 weights with one fp16 scale d, and a minimum m in the _1 variants. The nibbles of elements i
// and i + 16 share a byte.
#pragma once

#include "quant/codec.h"

namespace sluice::quant {

// d * (q - 8), where q has 4 bits.
struct Q4_0 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>((block.qs[i] & 15) - 8);
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) - 8);
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q4_0, Block>("q4_0", 2, kElements);
};

// d * q + m, where q has 4 bits.
struct Q4_1 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d, m;
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d), m = half_to_float(block.m);
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q4_1, Block>("q4_1", 3, kElements);
};

// d * (q - 16), where q has 5 bits. Bit i of qh is the highest bit of element i.
struct Q5_0 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    const uint32_t high = load_u32(block.qh);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(static_cast<int>((block.qs[i] & 15) | ((high >> i & 1) << 4)) - 16);
    }
    for (int i = 0; i < 16; ++i) {
      out[i + 16] = d * static_cast<float>(static_cast<int>((block.qs[i] >> 4) | ((high >> (i + 16) & 1) << 4)) - 16);
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q5_0, Block>("q5_0", 6, kElements);
};

// d * q + m, where q has 5 bits.
struct Q5_1 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d), m = half_to_float(block.m);
    const uint32_t high = load_u32(block.qh);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(static_cast<int>((block.qs[i] & 15) | ((high >> i & 1) << 4))) + m;
    }
    for (int i = 0; i < 16; ++i) {
      out[i + 16] = d * static_cast<float>(static_cast<int>((block.qs[i] >> 4) | ((high >> (i + 16) & 1) << 4))) + m;
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q5_1, Block>("q5_1", 7, kElements);
};

// d * q, where q has 8 bits.
struct Q8_0 {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d;
    int8_t qs[32];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.qs[i]) * d;
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q8_0, Block>("q8_0", 8, kElements);
};

}  // namespace sluice::quant
