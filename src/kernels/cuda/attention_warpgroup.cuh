// The prefill kernel of warp groups around what designs differ in (attention_warpgroup.cu, attention_warpgroup_fp8.cu):
//   Shared: the layout of a block's shared memory from `base` on: init_barriers() and, of kTileStages tiles of kTileKeys
//     keys whose rows have kPacks packs of kPackElements, keys(stage) with panels of kTilePanel bytes;
//   kBytes: of shared memory;
//   kProducerRegisters, kConsumerRegisters: of a thread, multiples of 8, in all what 3 x 168 are;
//   produce(p, block, shared): the work of the warp group that copies;
//   Consumer(p, block, shared): load_queries(), attend() and write().
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/warpgroup_rows.cuh"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Blocks: tiles (prefill_tile).
template <class Design>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_by_warpgroups(const __grid_constant__ AttentionParams p, int sequences) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = typename Design::Shared;
  extern __shared__ __align__(1024) uint4 memory[];
  const PrefillTile tile = prefill_tile(p, sequences, memory);  // where queries lie later
  if (tile.sequence < 0) return;
  const Block b = block_of(p, tile);
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  // Products read packs beyond the keys' own, too; a zero of the query does not make NaN of a key 0.
  const int own = p.head_dim / Shared::kPackElements, beyond = Shared::kPacks - own;
  for (int i = static_cast<int>(threadIdx.x); i < Shared::kTileStages * Shared::kTileKeys * beyond; i += kPrefillThreads) {
    const int row = i / beyond % Shared::kTileKeys, stage = i / beyond / Shared::kTileKeys;
    store_shared(shared.keys(stage) + pack_at(row, own + i % beyond, Shared::kTilePanel), {0, 0, 0, 0});
  }
  fence_for_products();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    fewer_registers<Design::kProducerRegisters>();
    Design::produce(p, b, shared);
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
void launch_prefill(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  constexpr int kBytes = Design::kBytes;
  static_assert(kBytes <= 227 << 10);
  static const bool allowed = (allow_shared(prefill_by_warpgroups<Design>, kBytes), true);
  static_cast<void>(allowed);
  const auto blocks = static_cast<unsigned>(at.prefill_tiles * p.kv_heads);
  prefill_by_warpgroups<Design><<<blocks, kPrefillThreads, kBytes, l.stream>>>(p, at.sequences);
  check_launch("attention prefill of warp groups");
}

}  // namespace sluice::cuda
