// Finds the extremes of a block, the first step of most quantizers. Magnitudes are compared as integers, which order
// the same way and which the compiler can vectorize.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::quant {

// Returns the largest magnitude not above `most` (the bits of a magnitude); larger ones count as zero.
inline float largest_magnitude(const float* in, size_t count, int32_t most) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(in[i]) & 0x7fffffff, counted = magnitude > most ? 0 : magnitude;
    largest = counted > largest ? counted : largest;
  }
  return std::bit_cast<float>(largest);
}
inline constexpr int32_t kInfinity = 0x7f800000;
inline float largest_number(const float* in, size_t count) { return largest_magnitude(in, count, kInfinity); }
inline float largest_finite(const float* in, size_t count) { return largest_magnitude(in, count, kInfinity - 1); }

struct Extremes {
  float least, most;
};
// Returns the extremes of zero and the finite numbers.
template <int count>
Extremes finite_extremes(const float* in) {
  constexpr int kLanes = 16;
  static_assert(count % kLanes == 0);
  float least[kLanes] = {}, most[kLanes] = {};
  for (int i = 0; i < count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float x = (std::bit_cast<int32_t>(in[i + j]) & 0x7fffffff) < kInfinity ? in[i + j] : 0.0f;
      least[j] = x < least[j] ? x : least[j];
      most[j] = x > most[j] ? x : most[j];
    }
  }
  Extremes found{least[0], most[0]};
  for (int j = 1; j < kLanes; ++j) {
    if (least[j] < found.least) found.least = least[j];
    if (most[j] > found.most) found.most = most[j];
  }
  return found;
}

}  // namespace sluice::quant
