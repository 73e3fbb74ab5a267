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
#include "kernels/cuda/attention/decode.cuh"

namespace sluice::cuda {
namespace {

template <class T, int dim, int tiles>
struct Packs {
  static void launch(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
    launch_packs<T, dim, tiles>(l, p, at);
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
