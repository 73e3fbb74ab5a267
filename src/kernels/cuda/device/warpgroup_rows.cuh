// What the warp-specialized prefill kernels share (attention/warpgroup.cu, attention/warpgroup_fp8.cu). A block has a
// tile of 128 packed rows. One producer warp group copies keys and values into shared memory; two consumer warp groups
// compute 64 rows each.
#pragma once

#include <climits>

#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/prefill_tile.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sluice::cuda {

inline constexpr int kGroupThreads = 128;  // threads of a warp group
inline constexpr int kConsumers = 2;
inline constexpr int kPrefillThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kGroupRows = 64;       // packed rows of a consumer
inline constexpr uint32_t kRowBytes = 128;  // bytes of a matrix row in shared memory
static_assert(kConsumers * kGroupRows == kPrefillTileRows && kPrefillThreads <= kMostPrefillWarps * kWarp);

// Ids of named barriers; each consumer has one from these numbers on.
inline constexpr int kQueriesThere = 1, kTurn = kQueriesThere + kConsumers;

// Offset of pack `pack` of row `row` in a matrix whose panels are `panel_bytes` long.
__device__ inline uint32_t pack_at(int row, int pack, uint32_t panel_bytes) {
  return pack / 8 * panel_bytes + row * kRowBytes + ((pack ^ row) & 7) * 16;
}

// The tile that a block works on.
struct Block {
  int sequence, kv_head, first_row;
  int first_token, rows, kv_len;
  int begin, end;  // the keys that any row sees
};

__device__ inline Block block_of(const AttentionParams& p, const PrefillTile& tile) {
  Block b{.sequence = tile.sequence, .kv_head = tile.kv_head, .first_row = tile.first_row};
  b.first_token = p.query_start[b.sequence];
  b.rows = p.query_start[b.sequence + 1] - b.first_token;
  b.kv_len = p.kv_len[b.sequence];
  const int last_token = min(b.rows - 1, (b.first_row + kPrefillTileRows - 1) / p.group), past = b.kv_len - b.rows;
  b.begin = first_visible(p, past + b.first_row / p.group);
  b.end = last_visible(p, past + last_token, b.kv_len) + 1;
  return b;
}

// The tiles of `keys` keys that the producer copies for a block, seen by one thread. Tiles are numbered from the last
// keys to the first. Each warp copies a quarter of a tile; each lane looks up a group of `group` keys.
template <int keys>
class CopiedTiles {
 public:
  static constexpr int kWarpKeys = keys / 4, kGroups = kWarpKeys / 8;

  __device__ CopiedTiles(const AttentionParams& p, const Block& b, int group = 8)
      : p_(p),
        b_(b),
        group_(group),
        group_key_(static_cast<int>(threadIdx.x) % (kWarpKeys / group) * group),
        table_(p.block_table + int64_t{b.sequence} * p.block_table_stride),
        last_((b.end - 1) / keys),
        count_(last_ - b.begin / keys + 1) {
    look_up(0);
  }

  __device__ int count() const { return count_; }
  // The first key of the warp's part: in a tile, and in the sequence for tile i.
  __device__ static int warp_key() { return static_cast<int>(threadIdx.x) / kWarp * kWarpKeys; }
  __device__ int first_key(int i) const { return (last_ - i) * keys + warp_key(); }
  // Looks up tile i if there is one.
  __device__ void look_up(int i) {
    if (i < count_) {
      place_.look_up(p_, table_, first_key(i) + group_key_, b_.begin, b_.end, group_);
    }
  }
  // The vector that was looked up last.
  __device__ int vector() const { return place_.vector(p_, b_.kv_head); }

 private:
  const AttentionParams& p_;
  const Block& b_;
  const int group_, group_key_;
  const int32_t* table_;
  const int last_, count_;
  GroupPlace place_;
};

// A thread of a consumer. With g = l / 4 and t = l % 4, lane l of warp w has scores of rows 16 w + g and 16 w + g + 8.
struct ConsumerLane {
  __device__ static int consumer() { return static_cast<int>(threadIdx.x) / kGroupThreads - 1; }
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kGroupThreads; }
  __device__ static int g() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static int row() { return thread() / kWarp * 16 + g(); }
};

// Row `row` of a consumer.
__device__ inline PackedRow consumer_row(const AttentionParams& p, const Block& b, int consumer, int row) {
  return packed_row(p, b.kv_head, b.first_row + consumer * kGroupRows + row, b.rows, b.kv_len);
}

// The two rows of a consumer's lane. They store which keys both of them see, as most tiles lie within those.
class PrefillRows : public SoftmaxRows {
 public:
  __device__ PrefillRows(const AttentionParams& p, const Block& b, int consumer)
      : SoftmaxRows(consumer_row(p, b, consumer, ConsumerLane::row()),
                    consumer_row(p, b, consumer, ConsumerLane::row() + 8)),
        unit_(score_unit(p)) {
#pragma unroll
    for (const int at : position) {
      if (at < 0) continue;  // there is no such row, and what it sees does not matter
      first_seen_ = max(first_seen_, first_visible(p, at));
      last_seen_ = min(last_seen_, last_visible(p, at, b.kv_len));
    }
  }
  __device__ bool see(const AttentionParams&, int first_key, int last_key, int) const {
    return first_key >= first_seen_ && last_key <= last_seen_;
  }
  __device__ float unit(const AttentionParams&, int) const { return unit_; }

 private:
  int first_seen_ = 0, last_seen_ = INT_MAX;
  float unit_;  // stored, so that it is not computed for every tile
};

// The queries of a block's rows, in packs of eight elements. `vectors`: packs are aligned.
template <class Q, bool vectors>
class BlockQueries {
 public:
  __device__ BlockQueries(const AttentionParams& p, const Block& b, const Q* all) : p_(p), b_(b), all_(all) {}

  // Loads zeros where there is no query. The load itself is unconditional, so that loads do not wait for one another.
  __device__ void load(const PackedRow& row, int pack, float (&q)[8]) const {
    const bool there = row.position >= 0 && pack < p_.head_dim / 8;
    const int64_t at = (b_.first_token + row.token) * p_.q_stride + int64_t{row.head} * p_.head_dim + pack * 8;
    const Q* from = all_ + (there ? at : 0);
    if constexpr (vectors) {
      query_eight(from, q);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) q[i] = to_f32(from[i]);
    }
#pragma unroll
    for (float& x : q) x = there ? x : 0.0f;
  }

 private:
  const AttentionParams& p_;
  const Block& b_;
  const Q* all_;
};

// Calls f with the block's queries.
template <class F>
__device__ inline void with_block_queries(const AttentionParams& p, const Block& b, F&& f) {
  with_queries(p, [&]<class Q>(const Q* all) {
    if (reinterpret_cast<uintptr_t>(all) % 16 == 0 && p.q_stride % kPack<Q> == 0) {
      f(BlockQueries<Q, true>(p, b, all));
    } else {
      f(BlockQueries<Q, false>(p, b, all));
    }
  });
}

// Calls write(h, factor, first) for each row h of the lane that exists. `factor` is what its mixed values are
// multiplied by; `first` is the index of its first result element.
template <class Rows, class Write>
__device__ inline void each_result_row(const AttentionParams& p, const Block& b, const Rows& rows, Write&& write) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = result_factor(p, rows, h);  // a warp-wide operation, so all lanes call it
    if (rows.position[h] < 0) continue;
    const int token = b.first_token + rows.position[h] - (b.kv_len - b.rows);
    write(h, factor, token * p.out_stride + int64_t{rows.head[h]} * p.value_dim);
  }
}

// The warp has finished reading a stage.
__device__ inline void release(uint32_t barrier) {
  if (threadIdx.x % kWarp == 0) arrive(barrier);
}

// The consumers take turns at their matmuls or at their exponentials.
__device__ inline void give_first_turn() {
  if (ConsumerLane::consumer() == 1) arrive_threads(kTurn, kConsumers * kGroupThreads);
}
__device__ inline void take_turn() { sync_threads(kTurn + ConsumerLane::consumer(), kConsumers * kGroupThreads); }
__device__ inline void give_turn() {
  arrive_threads(kTurn + (ConsumerLane::consumer() ^ 1), kConsumers * kGroupThreads);
}

}  // namespace sluice::cuda
