// The first warps of a block, which work together and synchronize at a named barrier of their own (1 to 15).
#pragma once

namespace sluice::cuda {

struct Team {
  int warps, barrier;
  __device__ int threads() const { return warps * 32; }
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads()) : "memory"); }
};

}  // namespace sluice::cuda
