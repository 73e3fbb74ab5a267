// NF4 (Dettmers et al. 2023, arXiv:2305.14314): sixteen levels between -1 and 1, at quantiles of the normal
// distribution, times the largest magnitude of a block. GGUF files do not use it.
#pragma once

#include <array>

#include "quant/codec.h"

namespace sluice::quant {

// The constants of bitsandbytes, digit for digit.
inline constexpr std::array<float, 16> kNf4Levels = {-1.0f,
                                                     -0.6961928009986877f,
                                                     -0.5250730514526367f,
                                                     -0.39491748809814453f,
                                                     -0.28444138169288635f,
                                                     -0.18477343022823334f,
                                                     -0.09105003625154495f,
                                                     0.0f,
                                                     0.07958029955625534f,
                                                     0.16093020141124725f,
                                                     0.24611230194568634f,
                                                     0.33791524171829224f,
                                                     0.44070982933044434f,
                                                     0.5626170039176941f,
                                                     0.7229568362236023f,
                                                     1.0f};

struct NF4 {
  static constexpr int kElements = 64;
  struct [[gnu::packed]] Block {
    float scale;
    uint8_t qs[32];  // 16 bytes per 32 weights, elements i and i + 16
  };
  SLUICE_CODEC void dequantize(const Block& block, float* out) {
    constexpr auto kLevels = kNf4Levels;  // local copy: kernels cannot index kNf4Levels
    const float d = block.scale;
    for (int sub = 0; sub < 2; ++sub) {
      const uint8_t* q = block.qs + sub * 16;
      for (int i = 0; i < 16; ++i) out[sub * 32 + i] = d * kLevels[q[i] & 15];
      for (int i = 0; i < 16; ++i) out[sub * 32 + 16 + i] = d * kLevels[q[i] >> 4];
    }
  }
  // Rounds each weight to its nearest level.
  static void quantize(const float* in, Block& block);
  static constexpr TypeInfo kType = block_type<NF4, Block>("nf4", -1, kElements);
};

}  // namespace sluice::quant
