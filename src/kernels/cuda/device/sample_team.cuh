// What the threads of a block, or of the blocks of a cluster, add up or find together when they sample a row.
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/sample_block.cuh"

namespace sluice::cuda {

inline constexpr int kTeamBlocks = 8;  // in a cluster
inline constexpr int kTeamThreads = 256, kTeamWarps = kTeamThreads / 32;

// The address of what another block of the cluster has where this block has `here`, in shared memory.
template <class T>
__device__ const T* in_block(int block, const T* here) {
  uint64_t there = 0;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
  return reinterpret_cast<const T*>(there);
}

// Combines the values of `lanes` neighbouring lanes. Each of them gets the result.
template <int lanes = 32, class T, class Op>
__device__ T over_warp(T value, Op&& op) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
#pragma unroll
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

// Combines values of all threads; each of them gets the result. These are functions that are not inlined, so that a
// kernel with many calls fits the instruction cache. There are two sets of slots, used in turn, so that one barrier per
// call suffices.
class Team {
 public:
  static constexpr int kMostBytes = 32;  // in a value
  struct Slots {
    alignas(16) unsigned char of_warps[2][kTeamWarps][kMostBytes];
  };

  __device__ explicit Team(Slots& slots) : slots_(slots) {}

  template <class T, class Op>
  __device__ __noinline__ T over_block(T value, Op op) {
    put(over_warp(value, op));
    __syncthreads();
    const T of_warp = *slot<T>(lane() % kTeamWarps);
    turn_ ^= 1;
    return over_warp<kTeamWarps>(of_warp, op);
  }

  // May not follow over_block() of the same slots.
  template <class T, class Op>
  __device__ __noinline__ T over_cluster(T value, Op op) {
    static_assert(kTeamBlocks * kTeamWarps == 2 * 32);
    put(over_warp(value, op));
    sync_cluster();
    const int block = lane() / 4, warp = lane() % 4 * 2;
    const T both = op(*in_block(block, slot<T>(warp)), *in_block(block, slot<T>(warp + 1)));
    turn_ ^= 1;
    return over_warp(both, op);
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  template <class T>
  __device__ T* slot(int warp) {
    static_assert(sizeof(T) <= kMostBytes);
    return reinterpret_cast<T*>(slots_.of_warps[turn_][warp]);
  }
  template <class T>
  __device__ void put(const T& value) {
    if (lane() == 0) *slot<T>(static_cast<int>(threadIdx.x) / 32) = value;
  }

  Slots& slots_;
  int turn_ = 0;
};

// The sum of the values of this thread and those before it. Its scratch memory is used in turn, as Team's is.
class Scan {
 public:
  struct Slots {
    Sum of_warps[2][kTeamWarps];
  };

  __device__ explicit Scan(Slots& slots) : slots_(slots) {}

  __device__ __noinline__ Sum upto(Sum value) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const Sum before = __shfl_up_sync(~0u, value, offset);
      if (lane >= offset) value += before;
    }
    Sum* sums = slots_.of_warps[turn_];
    turn_ ^= 1;
    if (lane == 31) sums[warp] = value;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < kTeamWarps; ++other) value += other < warp ? sums[other] : 0;
    return value;
  }

 private:
  Slots& slots_;
  int turn_ = 0;
};

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
  __device__ int operator()(int x, int y) const { return min(x, y); }
};

}  // namespace sluice::cuda
