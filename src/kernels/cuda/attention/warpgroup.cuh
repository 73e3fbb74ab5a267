// The warp-specialized prefill kernel, a template over what designs differ in (warpgroup.cu, warpgroup_fp8.cu). One
// block of three warp groups per tile of 128 packed rows and kv head. A Design has
//   Shared: the layout of a block's shared memory from `base` on, with init_barriers(thread), called by all threads;
//   kBytes: bytes of shared memory;
//   kProducerRegisters, kConsumerRegisters: registers per thread, multiples of 8, in all at most those of 3 x 168;
//   Source: what the producer warp group needs besides the parameters;
//   prepare(p, shared): what all threads do first, followed by a barrier;
//   produce(p, block, source, shared): the work of the producer warp group;
//   Consumer(p, block, shared): load_queries(), attend() and write(), the work of a consumer warp group.
#pragma once

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/warpgroup_rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {

// Grid: tiles (prefill_tile).
template <class Design>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_by_warpgroups(const __grid_constant__ AttentionParams p, int sequences,
                          const __grid_constant__ typename Design::Source source) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = typename Design::Shared;
  extern __shared__ __align__(1024) uint4 memory[];
  const PrefillTile tile = prefill_tile(p, sequences, memory);  // the queries use this memory later
  if (tile.sequence < 0) return;
  const Block b = block_of(p, tile);
  const Shared shared{shared_address(memory)};
  shared.init_barriers(static_cast<int>(threadIdx.x));
  Design::prepare(p, shared);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    fewer_registers<Design::kProducerRegisters>();
    Design::produce(p, b, source, shared);
  } else {
    more_registers<Design::kConsumerRegisters>();
    typename Design::Consumer consumer(p, b, shared);
    consumer.load_queries();
    consumer.attend();
    consumer.write();
  }
#endif
}

template <class Design>
void launch_prefill(const Launch& l, const AttentionParams& p, const AttentionIndices& at,
                    const typename Design::Source& source) {
  constexpr int kBytes = Design::kBytes;
  static_assert(kBytes <= 227 << 10);
  static SharedMemoryLimit limit;
  limit.raise(l.device, prefill_by_warpgroups<Design>, kBytes);
  const auto blocks = static_cast<unsigned>(at.prefill_tiles * p.kv_heads);
  prefill_by_warpgroups<Design><<<blocks, kPrefillThreads, kBytes, l.stream>>>(p, at.sequences, source);
  check_launch("attention prefill (wgmma)");
}

}  // namespace sluice::cuda
