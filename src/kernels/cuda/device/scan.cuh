// Prefix sums over the lanes of a warp.
#pragma once

#include "kernels/cuda/device/reduce.cuh"

namespace sluice::cuda {

// The sum over the lanes up to and including this one.
__device__ inline int sum_upto(int x) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int before = __shfl_up_sync(kFullWarp, x, offset);
    if (static_cast<int>(threadIdx.x) % kWarp >= offset) x += before;
  }
  return x;
}

}  // namespace sluice::cuda
