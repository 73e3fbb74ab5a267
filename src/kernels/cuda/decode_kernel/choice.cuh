// How warps of the persistent decode kernel choose the experts of its rows.
#pragma once

#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/device/route.cuh"

namespace sluice::cuda::persistent {

// Chooses the experts of a row, among kShare * 32 at most, once the router's logits are there. Called by a whole warp.
template <int kShare>
__device__ __noinline__ void choose(const Experts& e, int row, uint32_t tag, Choice* choices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, count = e.count;
  const uint2* logits = e.logits.words + row * e.logits.stride + lane;
  choices += row * e.choice.top_k;
  float scores[kShare];
  uint2 words[kShare];
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    words[s] = s * kWarp + lane < count ? load_word(logits + s * kWarp) : uint2{__float_as_uint(kNever), tag};
  }
#pragma unroll
  for (int s = 0; s < kShare; ++s) scores[s] = __uint_as_float(wait_for_word(logits + s * kWarp, words[s], tag));
  __syncwarp();
  choose_experts<kShare>(e.choice, e.correction, count, scores, [&](int j, int expert, float score) {
    choices[j] = {expert, score};
  });
  const float factor = weight_factor(e.choice, [&](int j) { return choices[j].weight; });
  __syncwarp();
  if (lane < e.choice.top_k) choices[lane].weight *= factor;
  __syncwarp();
}
__device__ inline void choose(const MatmulInstruction& p, uint32_t epoch, uint32_t& known, Choice* choices) {
  const uint32_t tag = epoch + p.experts.logits.step;
  if (tag == known) return;
  known = tag;
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    p.experts.count <= 4 * kWarp ? choose<4>(p.experts, row, tag, choices)
                                 : choose<kMostExperts / kWarp>(p.experts, row, tag, choices);
  }
}

}  // namespace sluice::cuda::persistent
