// A team samples a row: a block, or the blocks of a cluster. This is what its threads add up or find together.
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/sample_shared.cuh"

namespace sluice::cuda {

// The address of what another block of the team has where this block has `here`, in shared memory.
template <class T>
__device__ const T* in_block(int block, const T* here) {
#if __CUDA_ARCH__ >= 900
  uint64_t there = 0;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
  return reinterpret_cast<const T*>(there);
#else
  return here;
#endif
}

// Waits for all threads of the team.
__device__ inline void sync_team() {
#if __CUDA_ARCH__ >= 900
  if (gridDim.x > 1) return sync_cluster();
#endif
  __syncthreads();
}

struct Added {
  __device__ Sum operator()(Sum x, Sum y) const { return x + y; }
  __device__ ops::Sums operator()(const ops::Sums& x, const ops::Sums& y) const {
    return {.a = x.a + y.a, .b = x.b + y.b, .c = x.c + y.c};
  }
};

struct Larger {
  template <class T>
  __device__ T operator()(T x, T y) const {
    return max(x, y);
  }
};
struct Smaller {
  template <class T>
  __device__ T operator()(T x, T y) const {
    return min(x, y);
  }
};

// Combines the values of `lanes` neighbouring lanes. Each of them gets the result.
template <class T, class Op>
__device__ T over_warp(T value, Op&& op, int lanes = 32) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
#pragma unroll 1
  for (int lane = lanes / 2; lane > 0; lane /= 2) {
    uint32_t words[kWords];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (uint32_t& word : words) word = __shfl_xor_sync(~0u, word, lane);
    T other;
    memcpy(&other, words, sizeof(T));
    value = op(value, other);
  }
  return value;
}

// The same of integers, modulo 2^64, in parts whose sums fit in 32 bits.
__device__ inline Sum over_warp(Sum value, Added, int lanes = 32) {
  constexpr uint32_t kPart = (1u << 27) - 1;
  if (static_cast<int>(threadIdx.x) % 32 >= lanes) value = 0;
  const Sum low = __reduce_add_sync(~0u, static_cast<uint32_t>(value) & kPart);
  const Sum middle = __reduce_add_sync(~0u, static_cast<uint32_t>(value >> 27) & kPart);
  const Sum high = __reduce_add_sync(~0u, static_cast<uint32_t>(value >> 54));
  return low + (middle << 27) + (high << 54);
}
__device__ inline ops::Sums over_warp(const ops::Sums& sums, Added added, int lanes = 32) {
  return {.a = over_warp(Sum{sums.a}, added, lanes),
          .b = over_warp(Sum{sums.b}, added, lanes),
          .c = over_warp(Sum{sums.c}, added, lanes)};
}

__device__ inline int over_warp(int value, Smaller, int = 32) { return __reduce_min_sync(~0u, value); }
__device__ inline int over_warp(int value, Larger, int = 32) { return __reduce_max_sync(~0u, value); }
__device__ inline uint32_t over_warp(uint32_t value, Smaller, int = 32) { return __reduce_min_sync(~0u, value); }

// Combines values of all threads; each of them gets the result. These are functions that are not inlined, so that a
// kernel with many calls fits the instruction cache. There are two sets of slots, used in turn, so that one barrier per
// call suffices.
class Team {
 public:
  template <class T, class Op>
  __device__ __noinline__ T over_block(T value, Op op) {
    value = over_warp(value, op);
    if (lane() == 0) *slot<T>(team_shared().block_slots, static_cast<int>(threadIdx.x) / 32) = value;
    __syncthreads();
    value = *slot<T>(team_shared().block_slots, lane() % kTeamWarps);
    turn_ ^= 1;
    return over_warp(value, op, kTeamWarps);
  }

  template <class T, class Op>
  __device__ __noinline__ T over_team(T value, Op op) {
    const int blocks = static_cast<int>(gridDim.x);
    if (blocks == 1) return over_block(value, op);
    value = over_warp(value, op);
    if (lane() == 0) *slot<T>(team_shared().team_slots, static_cast<int>(threadIdx.x) / 32) = value;
    sync_team();
    static_assert(kTeamWarps * kMostTeamBlocks <= 2 * 32);
    const int warps = kTeamWarps * blocks, lanes = min(warps, 32), own = lane() % lanes;
    const T* here = slot<T>(team_shared().team_slots, own % kTeamWarps);
    T mine = *in_block(own / kTeamWarps, here);
    if (warps > 32) mine = op(mine, *in_block(32 / kTeamWarps + own / kTeamWarps, here));
    turn_ ^= 1;
    return over_warp(mine, op, lanes);
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  template <class T>
  __device__ T* slot(TeamShared::Slots& slots, int warp) const {
    static_assert(sizeof(T) <= TeamShared::kMostBytes);
    return reinterpret_cast<T*>(slots.of_warps[turn_][warp]);
  }

  int turn_ = 0;
};

// The sum of the values of this thread and those before it. Its scratch memory is used in turn, as Team's is.
class Scan {
 public:
  __device__ __noinline__ Sum upto(Sum value) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const Sum before = __shfl_up_sync(~0u, value, offset);
      if (lane >= offset) value += before;
    }
    Sum(&sums)[kTeamWarps] = team_shared().scans[turn_];
    turn_ ^= 1;
    if (lane == 31) sums[warp] = value;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kTeamWarps; ++other) value += other < warp ? sums[other] : 0;
    return value;
  }

 private:
  int turn_ = 0;
};

}  // namespace sluice::cuda
