// Copies the selected keys of some rows at a time. Each of these rows is then a sequence, and its keys lie at the
// places 0, 1, 2, ... A row that sees all its keys therefore gets the bits that attention to all keys gives it.
#include "kernels/cpu/dispatch/selected_attention.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "ops/gathered_keys.h"

namespace sluice::kernels {
namespace {

using ops::GatheredKeys;

class Copies {
 public:
  Copies(const ops::AttentionArgs& args, const GatheredKeys& to)
      : args_(args), to_(to), top_k_(args.selected.shape[1]), bytes_(static_cast<size_t>(to.vector_bytes(to.keys))) {}

  const int32_t* selected(int64_t row) const { return args_.selected.as<int32_t>() + row * top_k_; }
  int64_t keys_of(int64_t row) const {
    const int32_t* all = selected(row);
    return std::find_if(all, all + top_k_, [](int32_t position) { return position < 0; }) - all;
  }

  // Copies one block of keys of the row, which is the i-th one of the copies. Places without a key become zeros.
  void copy(int64_t row, int64_t i, int64_t block) const {
    const auto sequence = std::upper_bound(args_.query_start.begin(), args_.query_start.end(), row) - 1;
    const int32_t* table = args_.block_table.data() + (sequence - args_.query_start.begin()) * args_.block_table_stride;
    const int64_t block_size = args_.k_cache.shape[2], first = block * GatheredKeys::kBlock;
    int64_t to = (i * to_.blocks + block) * GatheredKeys::kBlock;
    for (int64_t key = first; key < first + GatheredKeys::kBlock; ++key, ++to) {
      const int32_t position = key < top_k_ ? selected(row)[key] : -1;
      std::byte* vector = to_.keys.data + static_cast<size_t>(to) * bytes_;
      if (position < 0) {
        std::memset(vector, 0, bytes_);
        if (to_.keys.scales != nullptr) to_.keys.scales[to] = 0;
        continue;
      }
      const int64_t from = table[position / block_size] * block_size + position % block_size;
      std::memcpy(vector, args_.k_cache.data + static_cast<size_t>(from) * bytes_, bytes_);
      if (to_.keys.scales != nullptr) to_.keys.scales[to] = args_.k_cache.scales[from];
    }
  }

 private:
  const ops::AttentionArgs& args_;
  const GatheredKeys& to_;
  const int64_t top_k_;
  const size_t bytes_;
};

}  // namespace

void attend_to_selected(ops::Queue& queue, const ops::AttentionArgs& args,
                        void (*attention)(ops::Queue&, const ops::AttentionArgs&)) {
  const int64_t tokens = args.q.shape[0];
  if (tokens == 0) return;
  const GatheredKeys gathered(args);
  const Copies copies(args, gathered);
  for (int64_t first = 0; first < tokens; first += gathered.rows) {
    const int64_t rows = std::min(gathered.rows, tokens - first), blocks = gathered.blocks;
    queue.threads().parallel_for(rows * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) copies.copy(first + i / blocks, i / blocks, i % blocks);
    });
    for (int64_t i = 0; i < rows; ++i) {
      gathered.query_start[i + 1] = static_cast<int32_t>(i + 1);
      gathered.kv_len[i] = static_cast<int32_t>(copies.keys_of(first + i));
    }
    gathered.query_start[0] = 0;
    for (int64_t i = 0; i < rows * blocks; ++i) gathered.block_table[i] = static_cast<int32_t>(i);
    ops::AttentionArgs part = gathered.of_rows(args, first, rows);
    part.query_start = std::span<const int32_t>(gathered.query_start, static_cast<size_t>(rows + 1));
    part.kv_len = std::span<const int32_t>(gathered.kv_len, static_cast<size_t>(rows));
    part.block_table = std::span<const int32_t>(gathered.block_table, static_cast<size_t>(rows * blocks));
    attention(queue, part);
  }
}

}  // namespace sluice::kernels
