// Sums over the keys of splits, and how they are merged (attention/splits.cu). Kernels that merge must round alike, so
// nothing is left for the compiler to contract. A split in which a row sees no key changes no bit of the row.
#pragma once

#include "kernels/cuda/device/numeric.cuh"

namespace sluice::cuda {

// The largest score of a row, and the sum of its weights relative to that.
struct SplitSum {
  float top = -INFINITY, sum = 0.0f;
};

// What the mixed values of both sides are multiplied by.
struct SplitFactors {
  float old, next;

  __device__ float merge(float old_value, float next_value) const {
    return __fmaf_rn(next_value, next, __fmul_rn(old_value, old));
  }
};

// Adds the next split to `to`. Scores times `unit` are exponents of two.
__device__ inline SplitFactors merge_split(SplitSum& to, const SplitSum& next, float unit) {
  const float top = fmaxf(to.top, next.top), base = top == -INFINITY ? 0.0f : __fmul_rn(top, unit);
  const SplitFactors factors{exp2_fast(__fsub_rn(__fmul_rn(to.top, unit), base)),
                             exp2_fast(__fsub_rn(__fmul_rn(next.top, unit), base))};
  to = {top, factors.merge(to.sum, next.sum)};
  return factors;
}

}  // namespace sluice::cuda
