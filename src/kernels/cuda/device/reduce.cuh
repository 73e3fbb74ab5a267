// Sums and maxima over warps and blocks, in an order that depends only on the number of threads.
#pragma once

namespace sluice::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

template <int Lanes = kWarp>
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}

template <int Lanes = kWarp>
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

// The largest value of a block; see block_sum.
__device__ inline float block_max(float x, float* scratch) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  x = warp_max(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = warp_max(scratch[lane < warps ? lane : 0]);
  __syncthreads();
  return x;
}

// The sum over a block of up to 1024 threads (whole warps); every thread gets it. `scratch` holds 33 floats.
__device__ inline float block_sum(float x, float* scratch) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  if (warp == 0) {
    x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    if (lane == 0) scratch[kWarp] = x;
  }
  __syncthreads();
  const float sum = scratch[kWarp];
  __syncthreads();
  return sum;
}

}  // namespace sluice::cuda
