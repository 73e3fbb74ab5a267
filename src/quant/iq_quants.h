// The IQ formats. Groups of 4 or 8 weights are entries of a fixed codebook (iq_grids.h), with signs stored apart. IQ4
// has 16 non-equidistant levels instead. Super-blocks have 256 weights in sub-blocks of 16 or 32, except for IQ4_NL.
#pragma once

#include "quant/codec.h"
#include "quant/iq_grids.h"

namespace sluice::quant {

// Expands 7 bits to the signs of eight weights. The eighth sign makes the number of minuses even.
[[gnu::always_inline]] inline uint32_t even_signs(uint32_t seven) {
  return seven | static_cast<uint32_t>(__builtin_parity(seven)) << 7;
}

// Writes out[i] = scale * entry[i], negated where bit i of `signs` is set.
template <int N>
[[gnu::always_inline]] inline void signed_entry(float* out, float scale, const GridEntry<N>& entry, uint32_t signs) {
  for (int i = 0; i < N; ++i) {
    const float value = scale * static_cast<float>(entry.values[i]);
    out[i] = signs >> i & 1 ? -value : value;
  }
}

struct IQ2_XXS {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[64];  // per 32 weights: four 1-byte indices, then four times 7 bits of signs and 4 bits of scale
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 8; ++sub) {
      const uint8_t* q = block.qs + sub * 8;
      const uint32_t rest = load_u32(q + 4);
      const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
      for (int g = 0; g < 4; ++g) {
        signed_entry(out + sub * 32 + g * 8, scale, kGridIq2Xxs[q[g]], even_signs(rest >> (7 * g) & 127));
      }
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ2_XXS, Block>("iq2_xxs", 16, kElements);
};

struct IQ2_XS {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[64];     // 16 bits per 8 weights: 9 of index, 7 of signs
    uint8_t scales[8];  // a nibble per 16 weights
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 16; ++sub) {
      const int nibble = block.scales[sub / 2] >> (sub % 2 * 4) & 15;
      const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
      for (int g = 0; g < 2; ++g) {
        const uint32_t q = load_u16(block.qs + sub * 4 + g * 2);
        signed_entry(out + sub * 16 + g * 8, scale, kGridIq2Xs[q & 511], even_signs(q >> 9));
      }
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ2_XS, Block>("iq2_xs", 17, kElements);
};

struct IQ2_S {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[32];     // low 8 bits of the index, per 8 weights
    uint8_t signs[32];  // one byte of signs per 8 weights
    uint8_t qh[8];      // two high bits of the index
    uint8_t scales[8];  // a nibble per 16 weights
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int g = 0; g < 32; ++g) {
      const int nibble = block.scales[g / 4] >> (g / 2 % 2 * 4) & 15;
      const float scale = d * (0.5f + static_cast<float>(nibble)) * 0.25f;
      const int index = block.qs[g] | (block.qh[g / 4] >> (g % 4 * 2) & 3) << 8;
      signed_entry(out + g * 8, scale, kGridIq2S[index], block.signs[g]);
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ2_S, Block>("iq2_s", 22, kElements);
};

struct IQ3_XXS {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[64];    // an index per 4 weights
    uint8_t rest[32];  // per 32 weights: four times 7 bits of signs and 4 bits of scale
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 8; ++sub) {
      const uint32_t rest = load_u32(block.rest + sub * 4);
      const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
      for (int g = 0; g < 4; ++g) {
        const uint32_t signs = even_signs(rest >> (7 * g) & 127);
        const uint8_t* q = block.qs + sub * 8 + g * 2;
        signed_entry(out + sub * 32 + g * 8, scale, kGridIq3Xxs[q[0]], signs);
        signed_entry(out + sub * 32 + g * 8 + 4, scale, kGridIq3Xxs[q[1]], signs >> 4);
      }
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ3_XXS, Block>("iq3_xxs", 18, kElements);
};

struct IQ3_S {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[64];     // low 8 bits of the index, per 4 weights
    uint8_t qh[8];      // ninth bits of the indices
    uint8_t signs[32];  // one byte of signs per 8 weights
    uint8_t scales[4];  // a nibble per 32 weights
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int g = 0; g < 64; ++g) {
      const int nibble = block.scales[g / 16] >> (g / 8 % 2 * 4) & 15;
      const float scale = d * static_cast<float>(1 + 2 * nibble);
      const int index = block.qs[g] | (block.qh[g / 8] >> (g % 8) & 1) << 8;
      signed_entry(out + g * 4, scale, kGridIq3S[index], block.signs[g / 2] >> (g % 2 * 4));
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ3_S, Block>("iq3_s", 21, kElements);
};

// Codebook entries of -1, 0 and 1 are shifted by an eighth up or down.
inline constexpr float kIq1Delta = 0.125f;

template <int N>
[[gnu::always_inline]] inline void moved_entry(float* out, float scale, const GridEntry<N>& entry, float delta) {
  for (int i = 0; i < N; ++i) out[i] = scale * (static_cast<float>(entry.values[i]) + delta);
}

struct IQ1_S {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[32];  // low 8 bits of the index, per 8 weights
    uint8_t qh[16];  // 16 bits per 32 weights: four times 3 high bits, 3 bits of scale, the sign of delta
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 8; ++sub) {
      const uint32_t high = load_u16(block.qh + sub * 2);
      const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
      const float delta = high & 0x8000 ? -kIq1Delta : kIq1Delta;
      for (int g = 0; g < 4; ++g) {
        const uint32_t index = block.qs[sub * 4 + g] | (high >> (3 * g) & 7) << 8;
        moved_entry(out + sub * 32 + g * 8, scale, kGridIq1S[index], delta);
      }
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ1_S, Block>("iq1_s", 19, kElements);
};

struct IQ1_M {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t qs[32];  // low 8 bits of the index, per 8 weights
    uint8_t qh[16];  // a nibble per 8 weights: 3 high bits and the sign of delta
    // Four 16-bit words: each has four scales of 3 bits and a nibble of the super-block's fp16 scale.
    uint8_t scales[8];
  };
  SLUICE_HOST_CODEC void dequantize(const Block& block, float* out) {
    uint32_t half = 0;
    for (int i = 0; i < 4; ++i) half |= static_cast<uint32_t>(load_u16(block.scales + 2 * i) >> 12) << (4 * i);
    const float d = half_to_float(static_cast<uint16_t>(half));
    for (int g = 0; g < 32; ++g) {
      const int sub = g / 2;
      const uint32_t bits = load_u16(block.scales + sub / 4 * 2) >> (3 * (sub % 4)) & 7;
      const uint32_t high = static_cast<uint32_t>(block.qh[g / 2]) >> (g % 2 * 4);
      const float delta = high & 8 ? -kIq1Delta : kIq1Delta;
      moved_entry(out + g * 8, d * static_cast<float>(2 * bits + 1), kGridIq1S[block.qs[g] | (high & 7) << 8], delta);
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ1_M, Block>("iq1_m", 29, kElements);
};

inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL {
  static constexpr int kElements = 32;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint8_t qs[16];  // elements i and i + 16
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr auto kLevels = std::to_array(kIq4Levels);  // local copy: kernels cannot index kIq4Levels
    const float d = half_to_float(block.d);
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(kLevels[block.qs[i] & 15]);
    for (int i = 0; i < 16; ++i) out[i + 16] = d * static_cast<float>(kLevels[block.qs[i] >> 4]);
  }
  static constexpr TypeInfo kType = read_only_type<IQ4_NL, Block>("iq4_nl", 20, kElements);
};

struct IQ4_XS {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d;
    uint16_t scales_h;    // two high bits per 32 weights
    uint8_t scales_l[4];  // a nibble per 32 weights
    uint8_t qs[128];      // 16 bytes per 32 weights, as in IQ4_NL
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr auto kLevels = std::to_array(kIq4Levels);  // local copy: kernels cannot index kIq4Levels
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 8; ++sub) {
      const int low = block.scales_l[sub / 2] >> (sub % 2 * 4) & 15, high = block.scales_h >> (2 * sub) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const uint8_t* q = block.qs + sub * 16;
      for (int i = 0; i < 16; ++i) out[sub * 32 + i] = scale * static_cast<float>(kLevels[q[i] & 15]);
      for (int i = 0; i < 16; ++i) out[sub * 32 + 16 + i] = scale * static_cast<float>(kLevels[q[i] >> 4]);
    }
  }
  static constexpr TypeInfo kType = read_only_type<IQ4_XS, Block>("iq4_xs", 23, kElements);
};

}  // namespace sluice::quant
