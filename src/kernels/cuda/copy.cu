// Copies of a few KiB between device memory and pinned host memory, done by a kernel. A hand-over between a copy engine
// and the SMs takes several microseconds, and a decode step begins with such a copy.
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

// Host memory is read with __ldcv, which bypasses the caches, because it changes between launches.
template <bool early>
__global__ void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, size_t in_packs) {
  constexpr size_t kPack = sizeof(uint4);
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x, threads = size_t{gridDim.x} * kThreads;
  const auto read = [&](size_t at) { return __ldcv(reinterpret_cast<const uint4*>(from + at)); };
  const auto write = [&](size_t at, const uint4& pack) { *reinterpret_cast<uint4*>(to + at) = pack; };
  size_t at = thread * kPack;
  if constexpr (early) {
    const uint4 first = at < in_packs ? read(at) : uint4{0, 0, 0, 0};
    wait_for_earlier();
    if (at < in_packs) write(at, first);
    at += threads * kPack;
  } else {
    wait_for_earlier();
  }
  for (; at < in_packs; at += threads * kPack) write(at, read(at));
  for (at = in_packs + thread; at < bytes; at += threads) {
    to[at] = static_cast<std::byte>(__ldcv(reinterpret_cast<const unsigned char*>(from) + at));
  }
}

template <bool early>
void launch_copy(const Launch& l, void* to, const void* from, size_t bytes) {
  constexpr size_t kPack = sizeof(uint4);
  const bool aligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % kPack == 0;
  const size_t in_packs = aligned ? bytes / kPack * kPack : 0;
  const auto items = static_cast<int64_t>(std::max(in_packs / kPack, bytes - in_packs));
  launch_pdl(l, "copy", copy_bytes<early>, dim3(blocks_for(l, items, kThreads)), kThreads, 0,
             static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, in_packs);
}

}  // namespace

void copy_small(const Launch& l, void* to, const void* from, size_t bytes) { launch_copy<false>(l, to, from, bytes); }
void copy_from_host(const Launch& l, void* to, const void* from, size_t bytes) {
  launch_copy<true>(l, to, from, bytes);
}

}  // namespace sluice::cuda
