// The decode attention kernel that copies keys and values in packs of 16 bytes (decode.cu, decode_part.cu).
#pragma once

#include "kernels/cuda/attention/decode_launch.h"
#include "kernels/cuda/device/decode_units.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {

template <class T, int dim, int tiles, class Params>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    decode(const __grid_constant__ Params p, const __grid_constant__ Partials partials, int sequences,
           const __grid_constant__ Cut cut) {
  extern __shared__ __align__(1024) uint4 bytes[];
  const Team team{.warps = static_cast<int>(blockDim.x) / kWarp, .barrier = 0};
  const DecodeMemory<T, dim> memory(bytes, team.warps);
  constexpr int kRows = kStageKeys<T, dim>;
  const int own_packs = min(p.head_dim, p.value_dim) * static_cast<int>(sizeof(T)) / 16;
  clear_beyond<kUnits<T, dim>, kRows>(bytes, team.warps * kRingBytes<T, dim>, own_packs, team.threads());
  const Work<Params> work(p, memory.sequences, sequences, tiles * kQueries, cut, team);
  team.sync();
  PackStream<T, dim, Params> stream(p, work, shared_address(memory.rings), memory.scales, team.warps, partials.tickets,
                                    memory.queues);
  decode_units<T, dim, tiles>(p, work, partials, stream);
  wait_for_copies<0>();
}

template <class T, int dim, int tiles, class Params>
void launch_packs(const Launch& l, const Params& p, const AttentionIndices& at) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, decode<T, dim, tiles, Params>, static_cast<size_t>(shared_of_block(l) - 1024));
  launch_decode<DecodeMemory<T, dim>>(l, p, at, tiles * kQueries, [&](const DecodeLaunch<Params>& d) {
    decode<T, dim, tiles, Params>
        <<<static_cast<unsigned>(l.sm_count), static_cast<unsigned>(d.warps * kWarp), static_cast<size_t>(d.shared),
           l.stream>>>(d.params, d.partials, d.sequences, d.cut);
    check_launch("attention decode");
  });
}

}  // namespace sluice::cuda
