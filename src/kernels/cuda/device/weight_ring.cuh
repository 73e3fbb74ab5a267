// Rings of stages in shared memory, which some warps fill and others read, and the copies that fill them (PTX ISA:
// mbarrier, cp.async.bulk; compute capability 9.0).
#pragma once

#include <cuda.h>

#include "kernels/cuda/device/warpgroup.cuh"

namespace sluice::cuda {

// A position in a ring: the next stage, and how often the ring has gone round. A user that takes only every step-th
// stage begins each round at stage `first`, which is less than `step`.
class RingPlace {
 public:
  __device__ RingPlace(uint32_t barriers, int stages, int stage_bytes, int first = 0, int step = 1)
      : barriers_(barriers), stages_(stages), stage_bytes_(stage_bytes), first_(first), step_(step), stage_(first) {}

  // Offset in bytes of the stage from the start of the ring.
  __device__ int offset() const { return stage_ * stage_bytes_; }
  __device__ uint32_t full() const { return barriers_ + 16 * stage_; }
  __device__ uint32_t empty() const { return full() + 8; }
  __device__ void wait_full() const { wait_barrier(full(), round_); }
  __device__ void wait_empty() const { wait_barrier(empty(), round_ ^ 1); }
  // Moves to the next stage and returns how many stages further it is.
  __device__ int next() {
    if (stage_ + step_ < stages_) {
      stage_ += step_;
      return step_;
    }
    const int on = stages_ - stage_ + first_;
    stage_ = first_, round_ ^= 1;
    return on;
  }
  __device__ int stages() const { return stages_; }
  // The position `by` stages further, or back if `by` is negative. |by| is at most the number of stages.
  __device__ RingPlace moved(int by) const {
    RingPlace to = *this;
    to.stage_ += by;
    if (to.stage_ < 0) to.stage_ += stages_, to.round_ ^= 1;
    if (to.stage_ >= stages_) to.stage_ -= stages_, to.round_ ^= 1;
    return to;
  }

 private:
  uint32_t barriers_;
  int stages_, stage_bytes_, first_, step_;
  int stage_;
  int round_ = 0;
};

// Initializes the barriers of a ring, a pair of 8 bytes each per stage. Called by one thread before the ring is used.
// `writers` threads arrive when a stage is full, `readers` when it is empty.
__device__ inline void make_ring(uint32_t barriers, int stages, int writers, int readers) {
  for (int i = 0; i < stages; ++i) {
    init_barrier(barriers + 16 * i, writers);
    init_barrier(barriers + 16 * i + 8, readers);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Lets the stage become full when `bytes` bytes have arrived.
__device__ inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The L2 policy for bytes that are read once: they are evicted first.
__device__ inline uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The L2 policy for bytes that are read again soon.
__device__ inline uint64_t l2_evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies a multiple of 16 bytes; both addresses are multiples of 16.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies a TMA tile that begins at these coordinates, innermost first (PTX ISA, cp.async.bulk.tensor; CUtensorMap).
__device__ inline void copy_tma_tile(uint32_t to, const CUtensorMap& map, int c0, int c1, int c2, uint32_t barrier,
                                     uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void copy_tma_tile(uint32_t to, const CUtensorMap& map, int c0, int c1, uint32_t barrier,
                                     uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier), "l"(policy)
      : "memory");
}

// Copies a TMA tile to the same address in several blocks of the cluster, those whose bits are set in `blocks`. The
// barrier at this address counts the bytes in each of them.
__device__ inline void multicast_tma_tile(uint32_t to, const CUtensorMap& map, int c0, int c1, uint32_t barrier,
                                          uint64_t policy, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_"
      "hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier), "h"(static_cast<uint16_t>(blocks)), "l"(policy)
      : "memory");
}

__device__ inline void prefetch_to_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }
// Prefetches a multiple of 16 bytes from an address that is a multiple of 16.
__device__ inline void prefetch_to_l2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace sluice::cuda
