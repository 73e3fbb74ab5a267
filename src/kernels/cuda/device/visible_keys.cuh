// Which keys a row of attention sees, and what their distance adds to scores.
#pragma once

#include "kernels/cuda/attention/params.h"

namespace sluice::cuda {

// The first and the last key that the row at `position` of a sequence of `kv_len` keys sees. Neither decreases with the
// position.
__device__ inline int first_visible(const AttentionParams& p, int position) {
  if (p.chunk > 0) return max(p.first, position / p.chunk * p.chunk);
  return p.window > 0 ? max(p.first, position - p.window + 1) : p.first;
}
__device__ inline int last_visible(const AttentionParams& p, int position, int kv_len) {
  if (p.causal) return position;
  return p.window > 0 ? position + min(kv_len - 1 - position, p.window - 1) : kv_len - 1;
}

// What is added to the score of `key` in the row at `position`. relative_bias must not be null.
__device__ inline float distance_bias(const AttentionParams& p, int head, int position, int key) {
  const int reach = p.relative_reach, distance = min(max(key - position, -reach), reach);
  return p.relative_bias[int64_t{head} * (2 * reach + 1) + reach + distance];
}

}  // namespace sluice::cuda
