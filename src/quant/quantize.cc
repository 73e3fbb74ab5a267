// Quantizers of the formats that need no search: each weight rounds to the nearest level, and the largest weight
// determines the scale. The result matches the reference of each format bit for bit.
#include <algorithm>
#include <cmath>

#include "base/wide.h"
#include "quant/extremes.h"
#include "quant/fp4.h"
#include "quant/k_quants.h"
#include "quant/q_legacy.h"
#include "quant/ternary.h"

namespace sluice::quant {
namespace {

// Truncates x to an integer in [0, most]; NaN gives 0.
int level(float x, int most) {
  const auto highest = static_cast<float>(most);
  return static_cast<int>(x > 0 ? x < highest ? x : highest : 0.0f);
}

// Rounds to the nearest integer, halves away from zero, clamped to [-most, most]; NaN gives 0. The compiler cannot
// vectorize std::round.
int nearest(float x, int most) {
  const auto highest = static_cast<float>(most);
  const float magnitude = std::abs(x), within = magnitude > 0 ? magnitude < highest ? magnitude : highest : 0.0f;
  const int whole = static_cast<int>(within), rounded = whole + (within - static_cast<float>(whole) >= 0.5f ? 1 : 0);
  return x < 0 ? -rounded : rounded;
}

float inverse(float d) { return d == 0 ? 0.0f : 1.0f / d; }

// Returns the element of largest magnitude with its sign; of equal ones, the first.
float extreme(const float* in, int count) {
  const float most = largest_number(in, static_cast<size_t>(count));
  const float* end = in + count;
  const float* first = std::find_if(in, end, [&](float x) { return std::abs(x) == most; });
  return first != end ? *first : 0.0f;
}

// Stores the low 4 bits of levels as nibbles of elements i and i + 16; formats with 5 bits store the fifth bit apart.
void store_nibbles(const int* q, uint8_t* qs) {
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

void store_fifth_bits(const int* q, uint8_t* qh) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(q[i] >> 4 & 1) << i;
  for (int i = 0; i < 4; ++i) qh[i] = static_cast<uint8_t>(bits >> (8 * i));
}

// Computes the levels of d * (q - zero). The extreme weight gets level 0.
float symmetric_levels(const float* in, int zero, int* q) {
  const float d = extreme(in, 32) / static_cast<float>(-zero), id = inverse(d);
  for (int i = 0; i < 32; ++i) q[i] = level(in[i] * id + (static_cast<float>(zero) + 0.5f), 2 * zero - 1);
  return d;
}

struct Affine {
  float d, m;
};
Affine affine_levels(const float* in, int most, int* q) {
  const auto [min, max] = std::minmax_element(in, in + 32);
  const float d = (*max - *min) / static_cast<float>(most), id = inverse(d);
  for (int i = 0; i < 32; ++i) q[i] = level((in[i] - *min) * id + 0.5f, most);
  return {d, *min};
}

}  // namespace

SLUICE_WIDE void Q4_0::quantize(const float* in, Block& block) {
  int q[32];
  block.d = float_to_fp16(symmetric_levels(in, 8, q));
  store_nibbles(q, block.qs);
}

SLUICE_WIDE void Q4_1::quantize(const float* in, Block& block) {
  int q[32];
  const Affine a = affine_levels(in, 15, q);
  block.d = float_to_fp16(a.d);
  block.m = float_to_fp16(a.m);
  store_nibbles(q, block.qs);
}

SLUICE_WIDE void Q5_0::quantize(const float* in, Block& block) {
  int q[32];
  block.d = float_to_fp16(symmetric_levels(in, 16, q));
  store_nibbles(q, block.qs);
  store_fifth_bits(q, block.qh);
}

SLUICE_WIDE void Q5_1::quantize(const float* in, Block& block) {
  int q[32];
  const Affine a = affine_levels(in, 31, q);
  block.d = float_to_fp16(a.d);
  block.m = float_to_fp16(a.m);
  store_nibbles(q, block.qs);
  store_fifth_bits(q, block.qh);
}

SLUICE_WIDE void Q8_0::quantize(const float* in, Block& block) {
  const float d = largest_number(in, 32) / 127, id = inverse(d);
  block.d = float_to_fp16(d);
  for (int i = 0; i < 32; ++i) block.qs[i] = static_cast<int8_t>(nearest(in[i] * id, 127));
}

// The extreme weight maps to -127. Rounding is to nearest even.
void Q8_K::quantize(const float* in, Block& block) {
  const float most = extreme(in, kElements);
  const float scale = most == 0 ? 0.0f : -127.0f / most;
  block.d = most == 0 ? 0.0f : 1 / scale;
  for (int i = 0; i < kElements; ++i) {
    const float q = std::nearbyint(scale * in[i]);
    block.qs[i] = static_cast<int8_t>(std::isnan(q) ? 0.0f : std::clamp(q, -127.0f, 127.0f));
  }
  for (int sub = 0; sub < kElements / 16; ++sub) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += block.qs[sub * 16 + i];
    block.bsums[sub] = static_cast<int16_t>(sum);
  }
}

void TQ1_0::quantize(const float* in, Block& block) {
  const float d = largest_number(in, kElements), id = inverse(d);
  // Packs `digits` numbers, `stride` apart, starting at `from`. The first is the most significant of five digits.
  const auto pack = [&](int from, int stride, int digits) {
    int number = 0;
    for (int i = 0; i < 5; ++i) number = number * 3 + (i < digits ? nearest(in[from + i * stride] * id, 1) + 1 : 0);
    return static_cast<uint8_t>((number * 256 + 242) / 243);
  };
  for (int i = 0; i < 32; ++i) block.qs[i] = pack(i, 32, 5);
  for (int i = 0; i < 16; ++i) block.qs[32 + i] = pack(160 + i, 16, 5);
  for (int i = 0; i < 4; ++i) block.qh[i] = pack(240 + i, 4, 4);
  block.d = float_to_fp16(d);
}

void TQ2_0::quantize(const float* in, Block& block) {
  const float d = largest_number(in, kElements), id = inverse(d);
  for (int i = 0; i < 64; ++i) {
    const float* from = in + i / 32 * 128 + i % 32;
    int byte = 0;
    for (int g = 0; g < 4; ++g) byte |= (nearest(from[g * 32] * id, 1) + 1) << (2 * g);
    block.qs[i] = static_cast<uint8_t>(byte);
  }
  block.d = float_to_fp16(d);
}

// The scale is the power of two that maps the largest weight to the largest exponent of E2M1 (2).
void MXFP4::quantize(const float* in, Block& block) {
  const float most = largest_number(in, 32);
  int e = 0;
  if (most > 0) e = std::isinf(most) ? 254 : std::clamp(std::ilogb(most) - 2 + 127, 0, 254);
  block.e = static_cast<uint8_t>(e);
  const float d = scale(block.e);
  int q[32];
  for (int i = 0; i < 32; ++i) {
    q[i] = 0;
    float least = std::abs(in[i]);  // error of level 0
    for (int l = 1; l < 16; ++l) {
      const float error = std::abs(d * static_cast<float>(kFp4Levels[l]) - in[i]);
      if (error < least) {
        least = error;
        q[i] = l;
      }
    }
  }
  store_nibbles(q, block.qs);
}

}  // namespace sluice::quant
