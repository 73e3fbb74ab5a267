// Paged decode attention (few rows per sequence) for caches of 16 and 8 bits and heads of up to 256 dimensions in whole
// packs of 16 bytes. One block of up to 8 warps per SM. Bound by reading the cache once.
//
// Each block adds up the lines of all sequences (decode_plan.h) from their lengths on the device. Each of its warps
// then takes the chunks of its part of them, one after another; where there are many lines, warps take whole lines in
// turn. A warp streams keys and values through its own ring in shared memory, which continues from chunk to chunk. The
// grid depends on no length. How keys are cut, and so a row's bits, depends on the lengths of all sequences that are
// decoded.
//
// Scores are computed transposed, keys by queries, so that eight queries (the heads of one kv head) fill a tensor-core
// tile. Queries and softmax weights are rounded to the cache's type, or to fp16 or bf16 for 8-bit caches. Scores and
// sums are fp32.
//
// This file copies keys and values in packs of 16 bytes, for devices before 9.0; see decode_tma.cu for the others.
#include "kernels/cuda/attention/decode_launch.h"
#include "kernels/cuda/device/decode_units.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {
namespace {

template <class T, int dim, int tiles>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    decode(const __grid_constant__ AttentionParams p, const __grid_constant__ Partials partials, int sequences,
           const __grid_constant__ Cut cut) {
  extern __shared__ __align__(1024) uint4 bytes[];
  const Team team{.warps = static_cast<int>(blockDim.x) / kWarp, .barrier = 0};
  const DecodeMemory<T, dim> memory(bytes, team.warps);
  constexpr int kRows = kStageKeys<T, dim>;
  const int own_packs = min(p.head_dim, p.value_dim) * static_cast<int>(sizeof(T)) / 16;
  clear_beyond<kUnits<T, dim>, kRows>(bytes, team.warps * kRingBytes<T, dim>, own_packs, team.threads());
  const Work work(p, memory.sequences, sequences, tiles * kQueries, cut, team);
  team.sync();
  PackStream<T, dim> stream(p, work, shared_address(memory.rings), memory.scales, team.warps, partials.tickets,
                            memory.queues);
  decode_units<T, dim, tiles>(p, work, partials, stream);
  wait_for_copies<0>();
}

template <class T, int dim, int tiles>
struct Packs {
  static void launch(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
    static SharedMemoryLimit limit;
    limit.raise(l.device, decode<T, dim, tiles>, static_cast<size_t>(shared_of_block(l) - 1024));
    launch_decode<DecodeMemory<T, dim>>(l, p, at, tiles * kQueries, [&](const DecodeLaunch& d) {
      decode<T, dim, tiles><<<static_cast<unsigned>(l.sm_count), static_cast<unsigned>(d.warps * kWarp),
                              static_cast<size_t>(d.shared), l.stream>>>(d.params, d.partials, d.sequences, d.cut);
      check_launch("attention decode");
    });
  }
};

}  // namespace

size_t attention_workspace(int sequences, int heads, int64_t value_dim, int64_t most_keys) {
  constexpr int64_t kCutRows = 1 << 16;  // few sequences: twice the warps of a device times the rows of a tile
  const int64_t chunks = most_chunks(most_keys, kLongestChunk);
  return static_cast<size_t>(std::max(kCutRows, sequences * heads * chunks)) * decode_row_bytes(value_dim);
}

template <class T>
void attention_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  decode_by_shape<T, Packs>(l, p, at);
}

template void attention_decode<__nv_bfloat16>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<__half>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<__nv_fp8_e4m3>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<__nv_fp8_e5m2>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<int8_t>(const Launch&, const AttentionParams&, const AttentionIndices&);

}  // namespace sluice::cuda
