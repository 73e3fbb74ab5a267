// Quantizers of Q4_K, Q5_K and Q6_K. Each sub-block runs a short search for the scale (and minimum) with the least
// squared error. Least squares with fixed levels improves each candidate. Then the scales are rounded to what the
// super-block can store, and the levels are chosen again.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/wide.h"
#include "quant/k_quants.h"

namespace sluice::quant {
namespace {

constexpr int kTrials = 9, kMiddle = kTrials / 2;

// Inlines helpers into the quantizers, which are compiled for several instruction sets (base/wide.h).
#define SLUICE_PART [[gnu::always_inline]] inline

// Lanes of the compiler's vectors. The results are the same on every instruction set.
constexpr int kTogether = 8;
using Floats = float __attribute__((vector_size(kTogether * sizeof(float))));

SLUICE_PART Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
SLUICE_PART float sum_of(const Floats& v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// Rounds to the nearest integer within [low, high]; NaN gives low. Adding kWhole leaves no room for a fraction.
constexpr float kWhole = 0x1.8p23f;
SLUICE_PART float nearest(float x, float low, float high) {
  const float within = x > low ? x < high ? x : high : low;
  return within + kWhole - kWhole;
}
SLUICE_PART Floats nearest(const Floats& x, const Floats& low, const Floats& high) {
  const Floats below = x < high ? x : high, within = x > low ? below : low;
  return within + kWhole - kWhole;
}

// Returns the sum of squared errors of scale * q - min against x.
template <int Count>
SLUICE_PART float squared_error(const float* x, const Floats* q, float scale, float min) {
  Floats error = {};
  for (int i = 0; i < Count / kTogether; ++i) {
    const Floats rest = scale * q[i] - min - load(x + i * kTogether);
    error += rest * rest;
  }
  return sum_of(error);
}

struct LevelSums {
  float q, qq, xq;
};
// Rounds (x - shift) * inverse to levels within [low, high].
template <int Count>
SLUICE_PART LevelSums choose_levels(const float* x, float shift, float inverse, float low, float high, Floats* q) {
  const Floats lowest = Floats{} + low, highest = Floats{} + high;
  Floats q_sum = {}, qq = {}, xq = {};
  for (int i = 0; i < Count / kTogether; ++i) {
    const Floats v = load(x + i * kTogether);
    q[i] = nearest((v - shift) * inverse, lowest, highest);
    q_sum += q[i], qq += q[i] * q[i], xq += v * q[i];
  }
  return {sum_of(q_sum), sum_of(qq), sum_of(xq)};
}

struct Fit {
  float scale = 0, min = 0;  // x is approximately scale * q - min
};

// Finds levels 0 .. most for `Count` weights, with min >= 0.
template <int Count>
SLUICE_PART Fit fit_affine(const float* x, int most) {
  float low = 0, high = x[0];
  for (int i = 0; i < Count; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  if (!(high > low) || !std::isfinite(high - low)) return {0, -low};
  Floats x_sums = {};
  for (int i = 0; i < Count; i += kTogether) x_sums += load(x + i);
  const float x_sum = sum_of(x_sums);
  Fit best{(high - low) / static_cast<float>(most), -low};
  float least = INFINITY;
  for (int trial = 0; trial < kTrials; ++trial) {
    const float inverse = (static_cast<float>(most) + 0.2f * static_cast<float>(trial - kMiddle)) / (high - low);
    Floats q[Count / kTogether];
    const LevelSums sums = choose_levels<Count>(x, low, inverse, 0, static_cast<float>(most), q);
    const float determinant = Count * sums.qq - sums.q * sums.q;
    if (!(determinant > 0)) continue;
    Fit fit{(Count * sums.xq - sums.q * x_sum) / determinant, (sums.q * sums.xq - sums.qq * x_sum) / determinant};
    if (fit.min < 0) fit = {sums.xq / sums.qq, 0};
    const float error = squared_error<Count>(x, q, fit.scale, fit.min);
    if (fit.scale > 0 && error < least) best = fit, least = error;
  }
  return best;
}

// Finds levels -half .. half - 1. The weight of largest magnitude gets about -half.
template <int Count>
SLUICE_PART float fit_symmetric(const float* x, int half) {
  float top = 0;
  for (int i = 0; i < Count; ++i) {
    if (std::abs(x[i]) > std::abs(top)) top = x[i];
  }
  if (top == 0 || !std::isfinite(top)) return 0;
  const auto range = static_cast<float>(half);
  float best = -top / range, least = INFINITY;
  for (int trial = 0; trial < kTrials; ++trial) {
    const float inverse = -(range + 0.1f * static_cast<float>(trial - kMiddle)) / top;
    Floats q[Count / kTogether];
    const LevelSums sums = choose_levels<Count>(x, 0, inverse, -range, range - 1, q);
    if (!(sums.qq > 0)) continue;
    const float scale = sums.xq / sums.qq, error = squared_error<Count>(x, q, scale, 0);
    if (error < least) best = scale, least = error;
  }
  return best;
}

// Scales and minima of Q4_K and Q5_K: rounded to six bits and packed, and the values a reader will see.
struct SuperScales {
  float scale[8], min[8];
};
template <class Block>
SLUICE_PART SuperScales store_scales(const Fit (&fits)[8], Block& block) {
  float most_scale = 0, most_min = 0;
  for (const Fit& f : fits) most_scale = std::max(most_scale, f.scale), most_min = std::max(most_min, f.min);
  block.d = float_to_fp16(most_scale / 63);
  block.dmin = float_to_fp16(most_min / 63);
  const float inverse_scale = most_scale > 0 ? 63 / most_scale : 0, inverse_min = most_min > 0 ? 63 / most_min : 0;
  int scales[8], mins[8];
  SuperScales read;
  for (int i = 0; i < 8; ++i) {
    scales[i] = static_cast<int>(nearest(fits[i].scale * inverse_scale, 0, 63));
    mins[i] = static_cast<int>(nearest(fits[i].min * inverse_min, 0, 63));
    read.scale[i] = half_to_float(block.d) * static_cast<float>(scales[i]);
    read.min[i] = half_to_float(block.dmin) * static_cast<float>(mins[i]);
  }
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = static_cast<uint8_t>(scales[i] | scales[4 + i] >> 4 << 6);
    block.scales[4 + i] = static_cast<uint8_t>(mins[i] | mins[4 + i] >> 4 << 6);
    block.scales[8 + i] = static_cast<uint8_t>((scales[4 + i] & 15) | (mins[4 + i] & 15) << 4);
  }
  return read;
}

// Chooses the levels of all 256 weights of Q4_K and Q5_K.
template <class Block>
SLUICE_PART void affine_levels(const float* in, int most, Block& block, int (&q)[kSuperBlock]) {
  Fit fits[8];
  for (int sub = 0; sub < 8; ++sub) fits[sub] = fit_affine<32>(in + sub * 32, most);
  const SuperScales s = store_scales(fits, block);
  for (int sub = 0; sub < 8; ++sub) {
    const float scale = s.scale[sub], min = s.min[sub], highest = scale > 0 ? static_cast<float>(most) : 0;
    for (int i = sub * 32; i < sub * 32 + 32; ++i) {
      q[i] = static_cast<int>(nearest((in[i] + min) / scale, 0, highest));
    }
  }
}

SLUICE_PART void store_nibbles(const int (&q)[kSuperBlock], uint8_t (&qs)[128]) {
  for (int pair = 0; pair < 4; ++pair) {
    const int* from = q + pair * 64;
    for (int i = 0; i < 32; ++i) qs[pair * 32 + i] = static_cast<uint8_t>((from[i] & 15) | (from[i + 32] & 15) << 4);
  }
}

}  // namespace
#undef SLUICE_PART

SLUICE_WIDE void Q4_K::quantize(const float* in, Block& block) {
  int q[kSuperBlock];
  affine_levels(in, 15, block, q);
  store_nibbles(q, block.qs);
}

SLUICE_WIDE void Q5_K::quantize(const float* in, Block& block) {
  int q[kSuperBlock];
  affine_levels(in, 31, block, q);
  store_nibbles(q, block.qs);
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int sub = 0; sub < 8; ++sub) bits |= q[sub * 32 + i] >> 4 << sub;
    block.qh[i] = static_cast<uint8_t>(bits);
  }
}

SLUICE_WIDE void Q6_K::quantize(const float* in, Block& block) {
  float scales[16], top = 0;
  for (int sub = 0; sub < 16; ++sub) {
    scales[sub] = fit_symmetric<16>(in + sub * 16, 32);
    if (std::abs(scales[sub]) > std::abs(top)) top = scales[sub];
  }
  block.d = float_to_fp16(-top / 128);
  const float inverse = top != 0 ? -128 / top : 0;
  int q[kSuperBlock];
  for (int sub = 0; sub < 16; ++sub) {
    block.scales[sub] = static_cast<int8_t>(nearest(scales[sub] * inverse, -128, 127));
    const float scale = half_to_float(block.d) * static_cast<float>(block.scales[sub]), any = scale != 0 ? 1 : 0;
    for (int i = sub * 16; i < sub * 16 + 16; ++i) {
      q[i] = static_cast<int>(nearest(in[i] / scale, -32 * any, 31 * any)) + 32;
    }
  }
  for (int half = 0; half < 2; ++half) {
    const int* from = q + half * 128;
    for (int i = 0; i < 64; ++i) {
      block.ql[half * 64 + i] = static_cast<uint8_t>((from[i] & 15) | (from[i + 64] & 15) << 4);
    }
    for (int i = 0; i < 32; ++i) {
      int bits = 0;
      for (int group = 0; group < 4; ++group) bits |= from[group * 32 + i] >> 4 << (2 * group);
      block.qh[half * 32 + i] = static_cast<uint8_t>(bits);
    }
  }
}

}  // namespace sluice::quant
