// Decode attention on compute capability 9.0: decode.cu with keys and values copied as TMA tiles of whole cache blocks,
// one lane per tile. Bound by reading the cache once. Measured on one H200 (4.64 TB/s): 256 sequences of 3072 keys, 32
// heads of 128 over 8, take 743 us in bf16 (4.34 TB/s) and 387 us in fp8 (4.16 TB/s).
//
// Copies of 16 bytes were a third of the instructions that a warp executed. A block's rings leave no room for blocks of
// the next matmul, so those start where a block of this kernel has ended.
#include "kernels/cuda/attention/cache_maps.h"
#include "kernels/cuda/attention/decode_launch.h"
#include "kernels/cuda/device/decode_units.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

template <class T, int dim, int tiles>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    decode_tma(const __grid_constant__ AttentionParams p, const __grid_constant__ CacheMaps maps,
               const __grid_constant__ Partials partials, int sequences, const __grid_constant__ Cut cut,
               const bool begins_early) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) uint4 bytes[];
  const Team team{.warps = static_cast<int>(blockDim.x) / kWarp, .barrier = 0};
  const DecodeMemory<T, dim> memory(bytes, team.warps);
  const uint32_t barriers = shared_address(memory.barriers);
  if (threadIdx.x < team.warps * kStages) init_barrier(barriers + threadIdx.x * 8, 1);
  if (threadIdx.x == 0) prefetch_map(maps.keys), prefetch_map(maps.values);
  fence_proxy_async();
  if (!begins_early) wait_for_earlier();
  const Work<AttentionParams> work(p, memory.sequences, sequences, tiles * kQueries, cut, team);
  team.sync();
  TmaStream<T, dim, AttentionParams> stream(p, maps, work, shared_address(memory.rings), memory.scales, barriers,
                                            team.warps, partials.tickets, memory.queues, begins_early);
  if (begins_early) wait_for_earlier();
  decode_units<T, dim, tiles>(p, work, partials, stream);
#endif
}

template <class T, int dim, int tiles>
struct TmaTiles {
  static void launch(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
    static SharedMemoryLimit limit;
    limit.raise(l.device, decode_tma<T, dim, tiles>, static_cast<size_t>(shared_of_block(l) - 1024));
    const CacheMaps maps = cache_maps(p, sizeof(T), kStageKeys<T, dim>);
    launch_decode<DecodeMemory<T, dim>>(l, p, at, tiles * kQueries, [&](const DecodeLaunch<AttentionParams>& d) {
      // In a captured graph no kernel writes indices, or keys and values of tokens before the current step.
      const bool begins_early = l.captured && d.cut.shared_by > 0;
      launch_pdl(l, "attention decode", decode_tma<T, dim, tiles>, dim3(static_cast<unsigned>(l.sm_count)),
                 static_cast<unsigned>(d.warps * kWarp), static_cast<size_t>(d.shared), d.params, maps, d.partials,
                 d.sequences, d.cut, begins_early);
    });
  }
};

}  // namespace

template <class T>
bool attention_decode_tma(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  if (l.compute_capability != 90) return false;
  decode_by_shape<T, TmaTiles>(l, p, at);
  return true;
}
#else
template <class T>
bool attention_decode_tma(const Launch&, const AttentionParams&, const AttentionIndices&) {
  return false;
}
#endif

template bool attention_decode_tma<__nv_bfloat16>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_decode_tma<__half>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_decode_tma<__nv_fp8_e4m3>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_decode_tma<__nv_fp8_e5m2>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_decode_tma<int8_t>(const Launch&, const AttentionParams&, const AttentionIndices&);

}  // namespace sluice::cuda
