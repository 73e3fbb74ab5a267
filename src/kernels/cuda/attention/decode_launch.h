// What both decode attention kernels are launched with.
#pragma once

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/attention/kernels.h"

namespace sluice::cuda {

inline constexpr int kLaunchedSequences = 1024;  // most sequences of a launch, as their lengths lie in shared memory

template <class Params>
struct DecodeLaunch {
  Params params;
  Partials partials;
  Cut cut;
  int sequences, warps, shared;  // shared: bytes
};

// Calls start(DecodeLaunch) for the sequences of a batch, as many at a time as fit into shared memory (DecodeMemory).
template <class Memory, class Params, class Start>
void launch_decode(const Launch& l, const Params& p, const AttentionIndices& at, int tile_rows, Start&& start) {
  constexpr int kBeside = 1024;  // static shared memory of the kernels, and alignment
  const int most_shared = shared_of_block(l) - kBeside;
  const int warps = std::min(kMostWarps, most_shared / Memory::kOfWarp);
  const int launched = std::min(kLaunchedSequences, (most_shared - warps * Memory::kOfWarp) / Memory::kOfSequence);
  for (int first = 0; first < at.sequences; first += launched) {
    const int sequences = std::min(at.sequences - first, launched);
    const auto [cut, partials] = plan_decode(l, p, at, sequences, warps, tile_rows, Memory::kKeyBytes);
    Params own = p;
    own.query_start += first, own.kv_len += first, own.block_table += int64_t{first} * p.block_table_stride;
    start(DecodeLaunch<Params>{own, partials, cut, sequences, warps, Memory::bytes(warps, sequences)});
  }
}

// Chooses the rows of a tile: two tensor-core tiles where there are more than eight rows and the registers suffice.
template <class T, template <class, int, int> class Kernel>
void decode_by_shape(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const int dim = std::max(p.head_dim, p.value_dim);
  const bool two = int64_t{at.decode_rows} * p.group > kQueries;
  if (dim <= 64) return two ? Kernel<T, 64, 2>::launch(l, p, at) : Kernel<T, 64, 1>::launch(l, p, at);
  if (dim <= 128) return two ? Kernel<T, 128, 2>::launch(l, p, at) : Kernel<T, 128, 1>::launch(l, p, at);
  Kernel<T, 256, 1>::launch(l, p, at);
}

}  // namespace sluice::cuda
