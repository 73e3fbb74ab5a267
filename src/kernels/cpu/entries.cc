// Selects the entries that each row attends to. Scores are computed like those of attention (key_tiles.h): keys in
// tiles of kTile, widened and transposed, times the queries of all heads. With instructions for bf16, keys of bf16 stay
// pairs, and queries are rounded to bf16. A tile is loaded once for several rows. Bound by arithmetic. The highest
// scores are found by their bits, eight at a time (radix select).
#include "ops/entries.h"
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/key_tiles.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr float kLowest = -__builtin_inff();
constexpr int64_t kRowsOfTask = 8, kEntriesOfTask = 512;
constexpr int64_t kHeadsAtOnce = kRegisters == 32 ? 8 : 2;
constexpr int64_t kMostScoreBytes = 32 << 20;  // rows are taken a part at a time, so that scores take no more

// A sequence's rows in the batch.
struct EntryRows {
  int64_t sequence, end;  // `end`: the row behind its last one
  int64_t last_position;
  int64_t entries(const ops::SelectEntriesArgs& args, int64_t row) const {
    return (last_position - (end - 1 - row) + 1) / args.entries.rate;
  }
};

EntryRows rows_at(const ops::PagedSequences& all, int64_t row) {
  const int32_t* start = all.query_start.data();
  int64_t sequence = 0;
  while (start[sequence + 1] <= row) ++sequence;
  return {sequence, start[sequence + 1], all.kv_len.data()[sequence] - 1};
}

bool chooses(const ops::SelectEntriesArgs& args, int64_t entries) {
  return entries - args.first > args.selected.shape[1];
}

// Whether products are those of pairs of bf16.
template <class T>
inline constexpr bool kPairs = false;
#ifdef __AVX512BF16__
template <>
inline constexpr bool kPairs<Bf16> = true;
#endif

// The scores of rows [first_row, last_row) of the batch, as rows of `stride` floats.
template <class T>
class EntryScores {
 public:
  EntryScores(const ops::SelectEntriesArgs& args, int64_t first_row, float* scores, int64_t stride)
      : args_(args),
        first_row_(first_row),
        dim_(args.entries.dim),
        heads_(args.weights.shape[1]),
        scores_(scores),
        stride_(stride) {}

  // Memory of a worker: a tile of keys, products of some heads, and if they are rounded, the queries of a task.
  static int64_t floats(const ops::SelectEntriesArgs& args) {
    const int64_t queries = kPairs<T> ? kRowsOfTask * args.weights.shape[1] * pairs(args.entries.dim) : 0;
    return tile_floats(args.entries.dim) + kHeadsAtOnce * kTile + round_up(queries, kLanes);
  }

  // Computes the scores of rows [row, end) for the entries [entry, last).
  void score(int64_t row, int64_t end, int64_t entry, int64_t last, float* memory) const {
    while (row < end) {
      const EntryRows rows = rows_at(args_.sequences, row);
      const int64_t run_end = min_of(end, rows.end), most = rows.entries(args_, run_end - 1);
      if (chooses(args_, most)) {
        if constexpr (kPairs<T>) this->round_queries(row, run_end, memory);
        for (int64_t tile = entry; tile < min_of(last, most); tile += kTile) {
          score_tile(rows, row, run_end, tile, memory);
        }
      }
      row = run_end;
    }
  }

 private:
  static int64_t pairs(int64_t dim) { return (dim + 1) / 2; }
  static int64_t tile_floats(int64_t dim) { return round_up(dim, 4) * kTile; }
  float* products_in(float* memory) const { return memory + tile_floats(dim_); }
  float* queries_in(float* memory) const { return products_in(memory) + kHeadsAtOnce * kTile; }

  const float* query(int64_t row) const {
    return reinterpret_cast<const float*>(args_.q.data) + row * args_.q.row_stride;
  }
#ifdef __AVX512BF16__
  // queries[row][head][pairs(dim)]
  void round_queries(int64_t row, int64_t end, float* memory) const {
    float* to = queries_in(memory);
    for (; row < end; ++row) {
      const float* q = query(row);
      for (int64_t head = 0; head < heads_; ++head, q += dim_, to += pairs(dim_)) {
        for (int64_t d = 0; d < dim_; d += 2 * kLanes) {
          const int64_t count = min_of(dim_ - d, 2 * kLanes);
          float padded[2 * kLanes] = {}, narrow[kLanes];
          __builtin_memcpy(padded, q + d, static_cast<size_t>(count) * sizeof(float));
          store(narrow, narrow_pairs(load(padded, All{}), load(padded + kLanes, All{})), All{});
          __builtin_memcpy(to + d / 2, narrow, static_cast<size_t>(pairs(count)) * sizeof(float));
        }
      }
    }
  }
#endif

  int64_t element(const EntryRows& rows, int64_t entry) const {
    const ops::EntryCache& e = args_.entries;
    const int64_t block_size = e.cache.shape[2], block = (entry * e.rate + e.rate - 1) / block_size;
    const int32_t* blocks = args_.sequences.block_table.data() + rows.sequence * args_.sequences.block_table_stride;
    return blocks[block] * block_size * e.cache.shape[3] + (entry - block * block_size / e.rate) * e.stride + e.first;
  }

  void score_tile(const EntryRows& rows, int64_t row, int64_t end, int64_t tile, float* memory) const {
    const T* keys[kTile];
    float scales[kTile];
    const int64_t most = rows.entries(args_, end - 1);
    for (int64_t i = 0; i < kTile; ++i) {
      keys[i] = nullptr, scales[i] = 0.0f;
      if (tile + i >= most) continue;
      const int64_t at = element(rows, tile + i);
      keys[i] = reinterpret_cast<const T*>(args_.entries.cache.data) + at;
      if constexpr (kScaled<T>) scales[i] = args_.entries.cache.scales[at / dim_];
    }
    if constexpr (kPairs<T>) {
      load_key_pairs(keys, dim_, memory);
    } else {
      load_keys(keys, dim_, memory);
    }
    for (int64_t i = 0; row + i < end; ++i) score_row(row + i, i, tile, memory, scales);
  }

  // The row is the i-th one of the tile's.
  void score_row(int64_t row, [[maybe_unused]] int64_t i, int64_t tile, float* memory,
                 [[maybe_unused]] const float* scales) const {
    constexpr int kVecs = kTile / kLanes;
    const float* weights = reinterpret_cast<const float*>(args_.weights.data) + row * args_.weights.row_stride;
    const int64_t stride = kPairs<T> ? pairs(dim_) : dim_;
    const float* q = query(row);
    if constexpr (kPairs<T>) q = queries_in(memory) + i * heads_ * stride;
    float* products = products_in(memory);  // [kHeadsAtOnce][kTile]
    Vec sum[kVecs];
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) sum[v] = zero();
    each_rows<kHeadsAtOnce>(heads_, [&]<int R>(int64_t head) {
      const KeyProduct product{
          .queries = q + head * stride, .keys = memory, .scores = products, .head_dim = stride, .stride = stride};
#ifdef __AVX512BF16__
      multiply_keys<R, std::conditional_t<kPairs<T>, PairProducts, Products>>(product, nullptr);
#else
      multiply_keys<R>(product, nullptr);
#endif
      for (int r = 0; r < R; ++r) {
        const Vec weight = broadcast(weights[head + r]);
        SLUICE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          sum[v] = fma(weight, max(zero(), load(products + r * kTile + v * kLanes, All{})), sum[v]);
        }
      }
    });
    float* to = scores_ + (row - first_row_) * stride_ + tile;
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kScaled<T>) sum[v] = sum[v] * load(scales + v * kLanes, All{});
      store(to + v * kLanes, sum[v], All{});
    }
  }

  const ops::SelectEntriesArgs& args_;
  const int64_t first_row_, dim_, heads_;
  float* const scores_;
  const int64_t stride_;
};

// Maps scores to integers of the same order. NaN is the lowest score, and both zeros are equal.
SLUICE_INLINE uint32_t order_of(float score) {
  if (score != score) score = kLowest;
  score += 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &score, sizeof bits);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Writes the indices of the `most` highest of scores[first .. end) in ascending order.
void select_highest(const float* scores, int64_t first, int64_t end, int64_t most, int32_t* to) {
  uint32_t threshold = 0;  // the lowest score that is selected, digit by digit
  int64_t left = most;     // how many are selected among those that begin with the digits so far
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    const uint32_t known = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    for (int64_t i = first; i < end; ++i) {
      const uint32_t bits = order_of(scores[i]);
      if ((bits & known) == threshold) ++counts[bits >> shift & 255];
    }
    uint32_t digit = 255;
    for (; counts[digit] < left; --digit) left -= counts[digit];
    threshold |= digit << shift;
  }
  for (int64_t i = first; i < end; ++i) {
    const uint32_t bits = order_of(scores[i]);
    if (bits > threshold || (bits == threshold && left-- > 0)) *to++ = static_cast<int32_t>(i);
  }
}

void select_row(const ops::SelectEntriesArgs& args, int64_t row, const float* scores) {
  const int64_t most = args.selected.shape[1], end = rows_at(args.sequences, row).entries(args, row);
  int32_t* to = reinterpret_cast<int32_t*>(args.selected.data) + row * most;
  if (chooses(args, end)) return select_highest(scores, args.first, end, most, to);
  for (int64_t i = 0; i < most; ++i) to[i] = args.first + i < end ? static_cast<int32_t>(args.first + i) : -1;
}

template <class T>
void select_as(ops::Queue& queue, const ops::SelectEntriesArgs& args) {
  ThreadPool& threads = queue.threads();
  const int64_t tokens = args.weights.shape[0];
  int64_t longest = 0;
  for (size_t s = 0; s < args.sequences.kv_len.size(); ++s) {
    longest = max_of(longest, args.sequences.kv_len.data()[s] / args.entries.rate);
  }
  const int64_t stride = round_up(max_of(longest, 1), kTile), spans = (longest + kEntriesOfTask - 1) / kEntriesOfTask;
  const int64_t row_bytes = stride * static_cast<int64_t>(sizeof(float));
  const int64_t fit = max_of(kMostScoreBytes / row_bytes / kRowsOfTask, 1) * kRowsOfTask;
  const int64_t tile_floats = round_up(EntryScores<T>::floats(args), kLanes);
  const int64_t all_tiles = tile_floats * threads.threads();
  auto* memory = reinterpret_cast<float*>(
      threads.scratch(static_cast<size_t>(all_tiles + min_of(fit, tokens) * stride) * sizeof(float)));
  float* scores = memory + all_tiles;
  for (int64_t first = 0; first < tokens; first += fit) {
    const int64_t end = min_of(tokens, first + fit);
    const EntryScores<T> computed(args, first, scores, stride);
    const int64_t parts = (end - first + kRowsOfTask - 1) / kRowsOfTask;
    threads.parallel_for(parts * spans, 1, [&](int64_t begin, int64_t tasks_end, int worker) {
      for (int64_t task = begin; task < tasks_end; ++task) {
        const int64_t row = first + task / spans * kRowsOfTask, entry = task % spans * kEntriesOfTask;
        computed.score(row, min_of(end, row + kRowsOfTask), entry, entry + kEntriesOfTask,
                       memory + worker * tile_floats);
      }
    });
    threads.parallel_for(end - first, 1, [&](int64_t begin, int64_t rows_end) {
      for (int64_t i = begin; i < rows_end; ++i) select_row(args, first + i, scores + i * stride);
    });
  }
}

}  // namespace

void select_entries(ops::Queue& queue, const ops::SelectEntriesArgs& args) {
  const DType type = args.entries.cache.dtype;
  if (type == &kBFloat16) return select_as<Bf16>(queue, args);
  if (type == &kFloat16) return select_as<Fp16>(queue, args);
  if (type == &kFloat8E4M3) return select_as<Fp8>(queue, args);
  if (type == &kFloat8E5M2) return select_as<Fp8E5M2>(queue, args);
  if (type == &kInt8) return select_as<Int8>(queue, args);
  select_as<float>(queue, args);
}

}  // namespace sluice::SLUICE_ISA
