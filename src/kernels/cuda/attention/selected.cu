// Attention to the keys that select_entries chose. The keys of some rows at a time are copied together, and the kernels
// for all keys attend to the copies, where each row is a sequence of its own (ops/gathered_keys.h). The copies are
// bound by memory traffic; those of one launch mostly stay in the L2 cache.
#include "kernels/cuda/attention/copies.h"
#include "kernels/cuda/device/search.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256, kBlock = ops::GatheredKeys::kBlock;

struct GatherParams {
  const std::byte* keys;
  const float* scales;  // for int8 caches
  const int32_t *selected, *query_start, *kv_len, *block_table;
  int top_k, sequences, block_table_stride, block_size;
  int first_row, vector_bytes;
  std::byte* to;
  float* to_scales;
  int32_t *to_query_start, *to_kv_len, *to_block_table;
};

// Copies a block of keys of one row: block x of row y. Places without a key become zeros.
template <class Pack>
__global__ void __launch_bounds__(kThreads) gather_keys(const __grid_constant__ GatherParams p) {
  const int row = p.first_row + static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int sequence = last_of(0, p.sequences - 1, [&](int s) { return p.query_start[s] <= row; });
  const int32_t* table = p.block_table + int64_t{sequence} * p.block_table_stride;
  const int32_t* selected = p.selected + int64_t{row} * p.top_k;
  const int first = static_cast<int>(blockIdx.x) * kBlock, packs = p.vector_bytes / static_cast<int>(sizeof(Pack));
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const auto vector_of = [&](int key) -> int64_t {
    const int position = first + key < p.top_k ? selected[first + key] : -1;
    if (position < 0) return -1;
    return int64_t{table[position / p.block_size]} * p.block_size + position % p.block_size;
  };
  auto* to = reinterpret_cast<Pack*>(p.to) + block * kBlock * packs;
  for (int i = thread; i < kBlock * packs; i += kThreads) {
    const int64_t vector = vector_of(i / packs);
    to[i] = vector < 0 ? Pack{} : reinterpret_cast<const Pack*>(p.keys)[vector * packs + i % packs];
  }
  if (p.scales != nullptr && thread < kBlock) {
    const int64_t vector = vector_of(thread);
    p.to_scales[block * kBlock + thread] = vector < 0 ? 0.0f : p.scales[vector];
  }
  if (thread > 0) return;
  p.to_block_table[block] = static_cast<int32_t>(block);
  if (blockIdx.x > 0) return;
  p.to_query_start[blockIdx.y] = static_cast<int32_t>(blockIdx.y);
  if (blockIdx.y + 1 == gridDim.y) p.to_query_start[gridDim.y] = static_cast<int32_t>(gridDim.y);
  p.to_kv_len[blockIdx.y] = last_of(0, p.top_k, [&](int n) { return n == 0 || selected[n - 1] >= 0; });
}

}  // namespace

void attention_selected(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at,
                        Arithmetic arithmetic) {
  const int64_t tokens = args.q.rows(), top_k = args.selected.shape[1];
  if (tokens == 0) return;
  const ops::GatheredKeys gathered(args);
  GatherParams p{.keys = args.k_cache.data,
                 .scales = args.k_cache.scales,
                 .selected = args.selected.as<int32_t>(),
                 .query_start = at.query_start,
                 .kv_len = at.kv_len,
                 .block_table = at.block_table,
                 .top_k = static_cast<int>(top_k),
                 .sequences = at.sequences,
                 .block_table_stride = args.block_table_stride,
                 .block_size = static_cast<int>(args.k_cache.shape[2]),
                 .first_row = 0,
                 .vector_bytes = static_cast<int>(ops::GatheredKeys::vector_bytes(args.k_cache)),
                 .to = gathered.keys.data,
                 .to_scales = gathered.keys.scales,
                 .to_query_start = gathered.query_start,
                 .to_kv_len = gathered.kv_len,
                 .to_block_table = gathered.block_table};
  const bool packs = p.vector_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(p.keys) % 16 == 0;
  attend_to_copies(l, args, gathered, arithmetic, [&](int first, dim3 grid) {
    p.first_row = first;
    if (packs) {
      gather_keys<uint4><<<grid, kThreads, 0, l.stream>>>(p);
    } else {
      gather_keys<uint8_t><<<grid, kThreads, 0, l.stream>>>(p);
    }
  });
}

}  // namespace sluice::cuda
