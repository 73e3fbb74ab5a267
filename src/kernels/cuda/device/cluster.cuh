// Blocks of a cluster, which can read each other's shared memory (compute capability 9.0).
#pragma once

#include <cstdint>

namespace sluice::cuda {

// Loads from another block's shared memory. `address` is the address in the caller's own.
__device__ inline float4 load_shared_of(int block, uint32_t address) {
  uint32_t there = 0;
  float4 v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// Arrives at a barrier of another block, or of this one. `barrier` is the address in the caller's own shared memory.
// Has the scope of a block: a release at the scope of the cluster waits about 1 us for earlier stores.
__device__ inline void arrive_at_block(int block, uint32_t barrier) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::
          "r"(barrier),
      "r"(block)
      : "memory");
}

// This block's even share of `all` items, which the blocks of a column of the grid divide among them.
struct Part {
  int begin, count;
};
__device__ inline Part part_of(int all) {
  const int blocks = static_cast<int>(gridDim.y), block = static_cast<int>(blockIdx.y);
  const int begin = all * block / blocks;
  return {begin, all * (block + 1) / blocks - begin};
}
// Shares that begin at multiples of `unit`.
__device__ inline Part part_of(int all, int unit) {
  const Part units = part_of((all + unit - 1) / unit);
  const int begin = units.begin * unit;
  return {begin, min(units.count * unit, all - begin)};
}

__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace sluice::cuda
