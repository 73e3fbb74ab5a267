// Paged attention of few rows per sequence (decode), for caches of 16 and 8 bits and heads of up to 256 dimensions in
// whole packs of 16 bytes. Bound by reading the cache once.
//
// The keys that a sequence's rows see are cut into chunks (chunks_of), and every chunk is a unit of work for each kv
// head and tile of packed rows. One launch of as many blocks as the device holds: each block adds up the units of all
// sequences from their lengths on the device, and each of its warps takes units by itself, one after another, streaming
// keys and values through a ring of its own in shared memory that runs on from unit to unit. The grid depends on no
// length. How keys are cut, and with it a row's bits, depends on the sequence's own length and on how many rows are
// decoded in all.
//
// Scores are computed transposed, keys by queries, so that eight queries (the heads of one kv head) fill a tile of the
// tensor cores. Queries and softmax weights are rounded to the cache's type, or to fp16; scores and sums are fp32.
//
// The kernel fills the multiprocessors by itself: it neither begins early nor lets the next one do so, whose blocks
// would sit beside it, a part of them, and wait.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/decode_units.cuh"

namespace sluice::cuda {
namespace {

constexpr int kLaunchedSequences = 1024;  // their lengths lie in shared memory
constexpr int kMostWarps = 8;             // of a block, as many as have room for their rings

template <class T, int dim, int tiles>
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    decode(const __grid_constant__ AttentionParams p, const __grid_constant__ Partials partials, int sequences,
           const __grid_constant__ Cut cut) {
  extern __shared__ __align__(128) uint4 memory[];
  decode_units<T, dim, tiles>(p, partials, sequences, cut, memory, {.warps = static_cast<int>(blockDim.x) / kWarp});
}

int tiles_for(int64_t packed_rows) { return packed_rows <= kQueries ? 1 : 2; }

template <class T, int dim, int tiles>
void launch_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  constexpr int kOfWarp = kDecodeBytesOfWarp<dim, T>, kOfSequence = sizeof(SequenceWork), kBeside = 1024;
  const int most_shared = shared_of_block(l) - kBeside;
  const int warps = std::min(kMostWarps, most_shared / kOfWarp);
  const int launched = std::min(kLaunchedSequences, (most_shared - warps * kOfWarp) / kOfSequence);
  const int shared = decode_bytes<dim, T>(warps, std::min(at.sequences, launched));
  static const bool allowed = (allow_shared(decode<T, dim, tiles>, static_cast<size_t>(most_shared)), true);
  static_cast<void>(allowed);
  for (int first = 0; first < at.sequences; first += launched) {
    const int sequences = std::min(at.sequences - first, launched);
    const auto [cut, partials] = plan_decode(l, p, at, sequences, warps, tiles * kQueries);
    AttentionParams own = p;
    own.query_start += first, own.kv_len += first, own.block_table += int64_t{first} * p.block_table_stride;
    decode<T, dim, tiles><<<static_cast<unsigned>(l.multiprocessors), static_cast<unsigned>(warps * kWarp),
                            static_cast<size_t>(shared), l.stream>>>(own, partials, sequences, cut);
    check_launch("attention decode");
  }
}

template <class T, int dim>
void decode_by_rows(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  if constexpr (dim <= 128) {  // more does not fit into the registers
    if (tiles_for(int64_t{at.decode_rows} * p.group) == 2) return launch_decode<T, dim, 2>(l, p, at);
  }
  launch_decode<T, dim, 1>(l, p, at);
}

}  // namespace

size_t attention_workspace(int sequences, int heads, int64_t value_dim, int64_t most_keys) {
  constexpr int64_t kCutRows = 1 << 15;  // of few sequences: warps of a device times rows of a tile
  const int64_t chunks = std::min<int64_t>(pieces(most_keys, kLongestChunk), kMostChunks);
  return static_cast<size_t>(std::max(kCutRows, sequences * heads * chunks)) * decode_row_bytes(value_dim);
}

template <class T>
void attention_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const int dim = std::max(p.head_dim, p.value_dim);
  if (dim <= 64) return decode_by_rows<T, 64>(l, p, at);
  if (dim <= 128) return decode_by_rows<T, 128>(l, p, at);
  decode_by_rows<T, 256>(l, p, at);
}

template void attention_decode<__nv_bfloat16>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<__half>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<__nv_fp8_e4m3>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_decode<int8_t>(const Launch&, const AttentionParams&, const AttentionIndices&);

}  // namespace sluice::cuda
