// Routing of one row without groups, by a warp that has a share of the experts in registers. The code is short, because
// a decode step runs it once per layer and waits for every instruction.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/expert_choice.h"

namespace sluice::cuda {

inline constexpr float kNever = -INFINITY;

// Maps values to integers in the same order: NaN is the least, both zeros are equal.
__device__ inline uint32_t order_of(float value) {
  const float x = isnan(value) ? kNever : value == 0.0f ? 0.0f : value;
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// The largest of a lane's values; the first among equals. Order 0: there is none.
struct Candidate {
  uint32_t order;
  int index;
};
// The best of all lanes, the lowest index among equals. -1: all are taken.
__device__ inline int best_index(const Candidate& own) {
  const uint32_t largest = __reduce_max_sync(kFullWarp, own.order);
  const uint32_t index = __reduce_min_sync(kFullWarp, own.order == largest ? own.index : ~0u);
  return largest == 0 ? -1 : static_cast<int>(index);
}

// Chooses the top_k experts of a row by softmax or sigmoid. Lane l has the logits of experts l, l + 32, ... in
// scores[]; those beyond `experts` are kNever. Calls chosen(j, expert, score) for each choice, in ascending order of
// experts, in the lane that has it. Called by a whole warp.
template <int kShare, class F>
__device__ inline void choose_experts(const ExpertChoice& r, const float* correction, int experts,
                                      float (&scores)[kShare], F&& chosen) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool softmax = r.softmax;
  float largest = kNever, sum = 0.0f;
  bool spoiled = false;
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    largest = fmaxf(largest, scores[s]);
    spoiled |= isnan(scores[s]);
  }
  largest = warp_max(largest);
  if (__any_sync(kFullWarp, spoiled)) largest = NAN;
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const float power = expf(softmax ? scores[s] - largest : -scores[s]);
    scores[s] = softmax ? power : 1.0f / (1.0f + power);
    sum += s * kWarp + lane < experts ? scores[s] : 0.0f;
  }
  sum = warp_sum(sum);
  uint32_t orders[kShare], taken = 0;
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const int i = s * kWarp + lane;
    if (softmax) scores[s] /= sum;
    orders[s] = 0;
    if (i < experts) orders[s] = order_of(scores[s] + (correction != nullptr ? correction[i] : 0.0f));
  }
#pragma unroll 1
  for (int j = 0; j < r.top_k; ++j) {
    Candidate own{0, 0};
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      if (orders[s] > own.order) own = {orders[s], s * kWarp + lane};
    }
    const int best = best_index(own);
    if (best % kWarp != lane) continue;
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      if (s == best / kWarp) orders[s] = 0;
    }
    taken |= 1u << best / kWarp;
  }
  int before = 0;
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const bool own = (taken >> s & 1) != 0;
    const unsigned votes = __ballot_sync(kFullWarp, own);
    if (own) chosen(before + __popc(votes & ((1u << lane) - 1)), s * kWarp + lane, scores[s]);
    before += __popc(votes);
  }
  __syncwarp();
}

// The factor that makes weights of the chosen scores, score_of(j) for j = 0 .. top_k - 1.
template <class F>
__device__ inline float weight_factor(const ExpertChoice& r, F&& score_of) {
  if (!r.normalize) return r.scale;
  float all = 0.0f;
  for (int j = 0; j < r.top_k; ++j) all += score_of(j);
  return r.scale / (all < r.smallest_sum ? r.smallest_sum : all);
}

}  // namespace sluice::cuda
