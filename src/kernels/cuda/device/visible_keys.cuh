// Which keys a row of attention sees, and what their distance adds to scores.
#pragma once

#include "kernels/cuda/attention/params.h"

namespace sluice::cuda {

// How many keys the caches have of the first `positions` positions of a sequence.
template <class Params>
__device__ inline int count_keys(const Params& p, int positions) {
  if constexpr (kOfPart<Params>) {
    const int rounds = static_cast<int>(__umulhi(static_cast<unsigned>(positions), p.per_round));
    return rounds * p.run + min(p.run, max(0, positions - (rounds * p.parts + p.part) * p.run));
  } else {
    return positions;
  }
}

// The first and the last key of the caches that the row at `position` of a sequence of `kv_len` positions sees. Neither
// decreases with the position. If the caches have a part of the keys, a row may see none of them. The first one is then
// the one behind the last.
template <class Params>
__device__ inline int first_visible(const Params& p, int position) {
  if (p.chunk > 0) return count_keys(p, max(p.first, position / p.chunk * p.chunk));
  return count_keys(p, p.window > 0 ? max(p.first, position - p.window + 1) : p.first);
}
template <class Params>
__device__ inline int last_visible(const Params& p, int position, int kv_len) {
  if (p.causal) return count_keys(p, position + 1) - 1;
  return count_keys(p, (p.window > 0 ? position + min(kv_len - 1 - position, p.window - 1) : kv_len - 1) + 1) - 1;
}

// What is added to the score of `key` in the row at `position`. relative_bias must not be null.
__device__ inline float distance_bias(const AttentionParams& p, int head, int position, int key) {
  const int reach = p.relative_reach, distance = min(max(key - position, -reach), reach);
  return p.relative_bias[int64_t{head} * (2 * reach + 1) + reach + distance];
}

}  // namespace sluice::cuda
