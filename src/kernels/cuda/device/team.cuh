// The first warps of a block, which work together and wait for each other at a barrier of their own.
#pragma once

namespace sluice::cuda {

struct Team {
  int warps;
  __device__ int threads() const { return warps * 32; }
  __device__ void sync() const { asm volatile("bar.sync 1, %0;" ::"r"(threads()) : "memory"); }
};

}  // namespace sluice::cuda
