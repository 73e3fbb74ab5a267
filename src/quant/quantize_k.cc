// Quantizers of Q4_K, Q5_K and Q6_K: per sub-block a short search for the scale (and minimum) of least squared error,
// each candidate improved by least squares with its levels fixed; then scales are rounded to what the super-block can
// hold, and the levels chosen anew under the rounded ones.
#include <algorithm>
#include <cmath>

#include "quant/k_quants.h"

namespace sluice::quant {
namespace {

constexpr int kTrials = 9;

// Nearest integer within [low, high]; NaN gives low.
int nearest(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  return x < static_cast<float>(high) ? static_cast<int>(std::nearbyint(x)) : high;
}

struct Fit {
  float scale = 0, min = 0;  // x is about scale * q - min
};

// Levels 0 .. most for `Count` weights, with min >= 0.
template <int Count>
Fit fit_affine(const float* x, int most) {
  float low = 0, high = x[0];
  for (int i = 0; i < Count; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  if (!(high > low) || !std::isfinite(high - low)) return {0, -low};
  Fit best{(high - low) / static_cast<float>(most), -low};
  float least = INFINITY;
  for (int trial = 0; trial < kTrials; ++trial) {
    const float inverse = (static_cast<float>(most) + 0.2f * static_cast<float>(trial - kTrials / 2)) / (high - low);
    float q_sum = 0, qq = 0, xq = 0, x_sum = 0;
    float q[Count];
    for (int i = 0; i < Count; ++i) {
      q[i] = static_cast<float>(nearest((x[i] - low) * inverse, 0, most));
      q_sum += q[i], qq += q[i] * q[i], xq += x[i] * q[i], x_sum += x[i];
    }
    const float determinant = Count * qq - q_sum * q_sum;
    if (!(determinant > 0)) continue;
    Fit fit{(Count * xq - q_sum * x_sum) / determinant, (q_sum * xq - qq * x_sum) / determinant};
    if (fit.min < 0) fit = {xq / qq, 0};
    float error = 0;
    for (int i = 0; i < Count; ++i) error += (fit.scale * q[i] - fit.min - x[i]) * (fit.scale * q[i] - fit.min - x[i]);
    if (fit.scale > 0 && error < least) best = fit, least = error;
  }
  return best;
}

// Levels -half .. half - 1; the weight of largest magnitude gets about -half.
template <int Count>
float fit_symmetric(const float* x, int half) {
  float top = 0;
  for (int i = 0; i < Count; ++i) {
    if (std::abs(x[i]) > std::abs(top)) top = x[i];
  }
  if (top == 0 || !std::isfinite(top)) return 0;
  float best = -top / static_cast<float>(half), least = INFINITY;
  for (int trial = 0; trial < kTrials; ++trial) {
    const float inverse = -(static_cast<float>(half) + 0.1f * static_cast<float>(trial - kTrials / 2)) / top;
    float qq = 0, xq = 0, error = 0;
    float q[Count];
    for (int i = 0; i < Count; ++i) {
      q[i] = static_cast<float>(nearest(x[i] * inverse, -half, half - 1));
      qq += q[i] * q[i], xq += x[i] * q[i];
    }
    if (!(qq > 0)) continue;
    const float scale = xq / qq;
    for (int i = 0; i < Count; ++i) error += (scale * q[i] - x[i]) * (scale * q[i] - x[i]);
    if (error < least) best = scale, least = error;
  }
  return best;
}

// Scales and minima of Q4_K and Q5_K rounded to six bits, packed, and as they will be read.
struct SuperScales {
  float scale[8], min[8];
};
template <class Block>
SuperScales store_scales(const Fit (&fits)[8], Block& block) {
  float most_scale = 0, most_min = 0;
  for (const Fit& f : fits) most_scale = std::max(most_scale, f.scale), most_min = std::max(most_min, f.min);
  block.d = float_to_fp16(most_scale / 63);
  block.dmin = float_to_fp16(most_min / 63);
  const float inverse_scale = most_scale > 0 ? 63 / most_scale : 0, inverse_min = most_min > 0 ? 63 / most_min : 0;
  int scales[8], mins[8];
  SuperScales read;
  for (int i = 0; i < 8; ++i) {
    scales[i] = nearest(fits[i].scale * inverse_scale, 0, 63);
    mins[i] = nearest(fits[i].min * inverse_min, 0, 63);
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

// The levels of all 256 weights of Q4_K and Q5_K.
template <class Block>
void affine_levels(const float* in, int most, Block& block, int (&q)[kSuperBlock]) {
  Fit fits[8];
  for (int sub = 0; sub < 8; ++sub) fits[sub] = fit_affine<32>(in + sub * 32, most);
  const SuperScales s = store_scales(fits, block);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float scale = s.scale[i / 32], min = s.min[i / 32];
    q[i] = scale > 0 ? nearest((in[i] + min) / scale, 0, most) : 0;
  }
}

void store_nibbles(const int (&q)[kSuperBlock], uint8_t (&qs)[128]) {
  for (int i = 0; i < 128; ++i) {
    const int at = i / 32 * 64 + i % 32;
    qs[i] = static_cast<uint8_t>((q[at] & 15) | (q[at + 32] & 15) << 4);
  }
}

}  // namespace

void Q4_K::quantize(const float* in, Block& block) {
  int q[kSuperBlock];
  affine_levels(in, 15, block, q);
  store_nibbles(q, block.qs);
}

void Q5_K::quantize(const float* in, Block& block) {
  int q[kSuperBlock];
  affine_levels(in, 31, block, q);
  store_nibbles(q, block.qs);
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int sub = 0; sub < 8; ++sub) bits |= q[sub * 32 + i] >> 4 << sub;
    block.qh[i] = static_cast<uint8_t>(bits);
  }
}

void Q6_K::quantize(const float* in, Block& block) {
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
    const float scale = half_to_float(block.d) * static_cast<float>(block.scales[sub]);
    for (int i = sub * 16; i < sub * 16 + 16; ++i) q[i] = scale != 0 ? nearest(in[i] / scale, -32, 31) + 32 : 32;
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
