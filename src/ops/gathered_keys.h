// Scratch memory for attention to selected keys (AttentionArgs::selected): copies of the keys that some rows see. Each
// row then is a sequence of its own, whose keys follow each other, and the kernels for all keys attend to them.
#pragma once

#include <algorithm>
#include <utility>

#include "ops/ops.h"

namespace sluice::ops {

struct GatheredKeys {
  static constexpr int64_t kBlock = 64;  // keys of a block of the copies
  static constexpr int64_t kAlign = 64;  // bytes

  int64_t rows = 0;                                                           // that fit
  int64_t blocks = 0;                                                         // of a row
  CacheTensor keys;                                                           // [rows * blocks, 1, kBlock, head_dim]
  int32_t *query_start = nullptr, *kv_len = nullptr, *block_table = nullptr;  // [rows + 1], [rows], [rows, blocks]

  static int64_t blocks_of(int64_t top_k) { return (top_k + kBlock - 1) / kBlock; }
  // Bytes for `rows` rows, whose keys take `vector_bytes` each.
  static int64_t bytes(int64_t rows, int64_t top_k, int64_t vector_bytes) {
    const int64_t blocks = blocks_of(top_k), vectors = rows * blocks * kBlock;
    const auto padded = [](int64_t size) { return (size + kAlign - 1) / kAlign * kAlign; };
    return padded(vectors * vector_bytes) + padded(vectors * 4) + padded((rows + 1) * 4) + padded(rows * 4) +
           padded(rows * blocks * 4);
  }
  static int64_t vector_bytes(const CacheTensor& cache) { return cache.shape[3] * cache.dtype->block_bytes; }

  explicit GatheredKeys(const AttentionArgs& args) : blocks(blocks_of(args.selected.shape[1])) {
    const int64_t top_k = args.selected.shape[1], each = vector_bytes(args.k_cache);
    const auto memory = static_cast<int64_t>(args.gathered.bytes());
    rows = memory / bytes(1, top_k, each);  // rows share what is padded
    rows = std::min<int64_t>(rows, args.q.shape[0]);
    CHECK(rows > 0 && bytes(rows, top_k, each) <= memory, "{} bytes for selected keys", memory);
    std::byte* at = args.gathered.data;
    const auto take = [&](int64_t size) { return std::exchange(at, at + (size + kAlign - 1) / kAlign * kAlign); };
    const int64_t vectors = rows * blocks * kBlock;
    keys = Tensor(take(vectors * each), args.k_cache.dtype, {rows * blocks, 1, kBlock, args.k_cache.shape[3]});
    auto* scales = reinterpret_cast<float*>(take(vectors * 4));
    if (args.k_cache.scales != nullptr) keys.scales = scales;
    query_start = reinterpret_cast<int32_t*>(take((rows + 1) * 4));
    kv_len = reinterpret_cast<int32_t*>(take(rows * 4));
    block_table = reinterpret_cast<int32_t*>(take(rows * blocks * 4));
  }

  // The arguments for rows [first, first + count), without their indices.
  AttentionArgs of_rows(const AttentionArgs& all, int64_t first, int64_t count) const {
    AttentionArgs args = all;
    args.q = all.q.slice_rows(first, count), args.out = all.out.slice_rows(first, count);
    args.k_cache = keys, args.block_table_stride = static_cast<int>(blocks);
    args.selected = args.gathered = {};
    args.first = 0;
    return args;
  }
};

}  // namespace sluice::ops
