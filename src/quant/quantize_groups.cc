// Quantizers of grouped integers, NF4 and 8-bit floats.
#include <algorithm>
#include <cmath>

#include "base/wide.h"
#include "quant/extremes.h"
#include "quant/groups.h"
#include "quant/nf4.h"

namespace sluice::quant {

template <int Bits, int Group>
SLUICE_WIDE void IntGroup<Bits, Group>::quantize(const float* in, Block& block) {
  constexpr int kMost = (1 << Bits) - 1;
  const auto [least, most] = finite_extremes<Group>(in);
  const float exact = most / kMost - least / kMost;  // most - least may overflow
  block.scale_zero = scale_zero(std::isfinite(exact) ? exact : 0.0f, 0);
  const float d = scale(block.scale_zero), inverse = d > 0 ? 1.0f / d : 0.0f;
  const auto level = [&](float x, float zero) {
    // Adding kWhole rounds away the fraction; kFar is beyond all levels.
    constexpr float kWhole = 0x1.8p23f, kFar = 2 * kMost;
    float q = x * inverse;
    q = q > kFar ? kFar : q < -kFar ? -kFar : q;
    q = q + kWhole - kWhole + zero;
    q = q > 0 ? q < kMost ? q : kMost : q <= 0 ? 0 : zero;  // NaN becomes the zero point
    return static_cast<int>(q);
  };
  const int zero = std::isfinite(inverse) ? level(-least, 0.0f) : 0;
  block.scale_zero = scale_zero(d, zero);
  const auto quant = [&](int i) { return static_cast<uint8_t>(level(in[i], static_cast<float>(zero))); };
  if constexpr (Bits == 8) {
    for (int i = 0; i < Group; ++i) block.qs[i] = quant(i);
  } else {
    for (int sub = 0; sub < Group; sub += 32) {
      for (int i = 0; i < 16; ++i) {
        block.qs[sub / 2 + i] = static_cast<uint8_t>(quant(sub + i) | quant(sub + 16 + i) << 4);
      }
    }
  }
}
template struct IntGroup<4, 32>;
template struct IntGroup<4, 64>;
template struct IntGroup<4, 128>;
template struct IntGroup<8, 128>;

SLUICE_WIDE void NF4::quantize(const float* in, Block& block) {
  const float most = largest_finite(in, kElements);
  block.scale = most;
  int places[kElements] = {};
  for (int level = 0; level < 15; ++level) {
    const float middle = (kNf4Levels[level] + kNf4Levels[level + 1]) / 2;
    for (int i = 0; i < kElements; ++i) {
      const float x = most > 0 ? in[i] / most : 0.0f;  // comparisons with NaN select the highest level
      places[i] += x <= middle ? 0 : 1;
    }
  }
  for (int sub = 0; sub < kElements; sub += 32) {
    for (int i = sub; i < sub + 16; ++i) {
      block.qs[i - sub / 2] = static_cast<uint8_t>(places[i] | places[i + 16] << 4);
    }
  }
}

// A separate function, because SLUICE_WIDE must be on the definition and not on the function in the header.
SLUICE_WIDE static void quantize_fp8_row(const float* in, Fp8::Block* blocks, size_t count) {
  constexpr int kElements = Fp8::kElements;
  const float scale = largest_finite(in, count) / 448.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (; count > 0; count -= kElements, in += kElements, ++blocks) {
    blocks->scale = scale;
    // The inverse of a subnormal scale may be infinite. Such weights are quantized as zeros.
    if (!std::isfinite(inverse)) {
      std::fill_n(blocks->qs, kElements, uint8_t{0});
      continue;
    }
    float scaled[kElements];
    for (int i = 0; i < kElements; ++i) scaled[i] = in[i] * inverse;
    codec::encode_f8e4m3(scaled, reinterpret_cast<std::byte*>(blocks->qs), kElements);
  }
}
void Fp8::quantize_row(const float* in, Block* blocks, size_t count) { quantize_fp8_row(in, blocks, count); }

}  // namespace sluice::quant
