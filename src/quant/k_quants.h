// The K formats: super-blocks of 256 weights in sub-blocks of 16 or 32. The scales (and minima) of sub-blocks are small
// integers times one fp16 number per super-block.
#pragma once

#include "quant/codec.h"

namespace sluice::quant {

// 16 sub-blocks of 16: d * scale * q - dmin * min, where q has 2 bits, scale and min 4.
struct Q2_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t scales[16];  // scale in the low nibble, min in the high
    uint8_t qs[64];      // two halves of 128 elements: four groups of 32 in the bit pairs of 32 bytes
    uint16_t d, dmin;
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
    for (int sub = 0; sub < 16; ++sub) {
      const float scale = d * static_cast<float>(block.scales[sub] & 15);
      const float min = dmin * static_cast<float>(block.scales[sub] >> 4);
      const uint8_t* q = block.qs + sub / 8 * 32 + sub % 2 * 16;
      const int shift = sub / 2 % 4 * 2;
      for (int i = 0; i < 16; ++i) out[sub * 16 + i] = scale * static_cast<float>(q[i] >> shift & 3) - min;
    }
  }
  static constexpr TypeInfo kType = read_only_type<Q2_K, Block>("q2_k", 10, kElements);
};

// 16 sub-blocks of 16: d * (scale - 32) * (q - 4), where q has 3 bits, scale 6.
struct Q3_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t hmask[32];  // bit g of byte i: the highest bit of element 32 g + i
    uint8_t qs[64];     // the two low bits, as in Q2_K
    // Four low bits in the nibbles of the first 8 bytes; two high bits in the bit pairs of the last 4.
    uint8_t scales[12];
    uint16_t d;
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 16; ++sub) {
      const int low = block.scales[sub % 8] >> (sub / 8 * 4) & 15;
      const int high = block.scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      const uint8_t* q = block.qs + sub / 8 * 32 + sub % 2 * 16;
      const uint8_t* h = block.hmask + sub % 2 * 16;
      const int shift = sub / 2 % 4 * 2, bit = sub / 2;
      for (int i = 0; i < 16; ++i) {
        out[sub * 16 + i] = scale * static_cast<float>(((q[i] >> shift & 3) | (h[i] >> bit & 1) << 2) - 4);
      }
    }
  }
  static constexpr TypeInfo kType = read_only_type<Q3_K, Block>("q3_k", 11, kElements);
};

// Unpacks scales and minima of 6 bits, eight of each in 12 bytes, as in Q4_K and Q5_K.
struct ScalesAndMins {
  uint8_t scale[8], min[8];
};
[[gnu::always_inline]] inline SLUICE_ANY_PROCESSOR ScalesAndMins unpack_scales(const uint8_t (&packed)[12]) {
  ScalesAndMins out;
  for (int i = 0; i < 4; ++i) {
    out.scale[i] = packed[i] & 63;
    out.min[i] = packed[4 + i] & 63;
    out.scale[4 + i] = static_cast<uint8_t>((packed[8 + i] & 15) | (packed[i] >> 6 << 4));
    out.min[4 + i] = static_cast<uint8_t>((packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4));
  }
  return out;
}

// 8 sub-blocks of 32: d * scale * q - dmin * min, where q has 4 bits.
struct Q4_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];  // sub-blocks 2 j and 2 j + 1 are the low and high nibbles of bytes 32 j ..
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
    const ScalesAndMins s = unpack_scales(block.scales);
    for (int sub = 0; sub < 8; ++sub) {
      const float scale = d * static_cast<float>(s.scale[sub]), min = dmin * static_cast<float>(s.min[sub]);
      const uint8_t* q = block.qs + sub / 2 * 32;
      const int shift = sub % 2 * 4;
      for (int i = 0; i < 32; ++i) out[sub * 32 + i] = scale * static_cast<float>(q[i] >> shift & 15) - min;
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q4_K, Block>("q4_k", 12, kElements);
};

// Like Q4_K, with q of 5 bits.
struct Q5_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[32];  // bit s of byte i: the highest bit of element i of sub-block s
    uint8_t qs[128];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
    const ScalesAndMins s = unpack_scales(block.scales);
    for (int sub = 0; sub < 8; ++sub) {
      const float scale = d * static_cast<float>(s.scale[sub]), min = dmin * static_cast<float>(s.min[sub]);
      const uint8_t* q = block.qs + sub / 2 * 32;
      const int shift = sub % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        out[sub * 32 + i] = scale * static_cast<float>((q[i] >> shift & 15) | (block.qh[i] >> sub & 1) << 4) - min;
      }
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q5_K, Block>("q5_k", 13, kElements);
};

// 16 sub-blocks of 16: d * scale * (q - 32), where q has 6 bits, scale 8.
struct Q6_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    uint8_t ql[128];  // two halves of 128 elements: groups 0 and 1 of 32 are low nibbles, 2 and 3 the high ones
    uint8_t qh[64];   // per half: bit pair g of byte i belongs to element i of group g
    int8_t scales[16];
    uint16_t d;
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    const float d = half_to_float(block.d);
    for (int sub = 0; sub < 16; ++sub) {
      const float scale = d * static_cast<float>(block.scales[sub]);
      const int half = sub / 8, group = sub / 2 % 4, at = sub % 2 * 16;
      const uint8_t* low = block.ql + half * 64 + group % 2 * 32 + at;
      const uint8_t* high = block.qh + half * 32 + at;
      const int shift = group / 2 * 4;
      for (int i = 0; i < 16; ++i) {
        const int q = (low[i] >> shift & 15) | (high[i] >> (group * 2) & 3) << 4;
        out[sub * 16 + i] = scale * static_cast<float>(q - 32);
      }
    }
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q6_K, Block>("q6_k", 14, kElements);
};

// d * q, where q has 8 bits. bsums are sums of 16 quants, for dot products with formats that have minima.
struct Q8_K {
  static constexpr int kElements = kSuperBlock;
  struct [[gnu::packed]] Block {
    float d;
    int8_t qs[kSuperBlock];
    int16_t bsums[kSuperBlock / 16];
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    for (int i = 0; i < kElements; ++i) out[i] = block.d * static_cast<float>(block.qs[i]);
  }
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<Q8_K, Block>("q8_k", 15, kElements);
};

}  // namespace sluice::quant
