// What the attention kernels share: packed rows, keys and values on their way to shared memory and their layout there,
// the online softmax in the registers (Dao 2023, arXiv:2307.08691).
//
// Rows are packed: the query heads of one kv head lie side by side (row m is token m / group, head m % group), so that
// a key is read once for all of them.
#pragma once

#include "kernels/cuda/device/attention_queries.cuh"
#include "kernels/cuda/device/attention_results.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/visible_keys.cuh"

namespace sluice::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// Vectors of `dim` elements of 16 bits in shared memory; packs of 16 bytes are exchanged within a row so that eight
// rows of one column lie in eight different groups of banks.
template <int dim>
struct SharedRows {
  static constexpr int kPacks = dim / 8;
  uint32_t base;
  __device__ uint32_t pack(int row, int pack) const {
    return base + (row * kPacks + (pack & ~7) + ((pack ^ row) & 7)) * 16;
  }
};

// Packs beyond the vectors' own are read by the tensor cores, too.
template <int dim>
__device__ inline void clear_beyond(uint4* rows, int count, int elements, int threads) {
  const SharedRows<dim> shared{0};
  const int own = elements / 8, beyond = SharedRows<dim>::kPacks - own;
  for (int i = threadIdx.x; i < count * beyond; i += threads) {
    rows[shared.pack(i / beyond, own + i % beyond) / 16] = {0, 0, 0, 0};
  }
}

// Where a packed row is.
struct PackedRow {
  int token;     // in its sequence's rows
  int head;      // of all query heads
  int position;  // -1: there is no such row
};

__device__ inline PackedRow packed_row(const AttentionParams& p, int kv_head, int index, int rows, int kv_len) {
  const int token = index / p.group;
  return {token, kv_head * p.group + index % p.group, token < rows ? kv_len - rows + token : -1};
}

// Are scores scaled and nothing else?
__device__ inline bool plain_scores(const AttentionParams& p) {
  return p.soft_cap <= 0 && p.alibi_slopes == nullptr && p.relative_bias == nullptr;
}
// Scores times this are in powers of two: as they come from the products where they are plain, else after `adjust`.
__device__ inline float score_unit(const AttentionParams& p) { return plain_scores(p) ? p.scale * kLog2E : kLog2E; }

// Scales and caps the scores of a lane and adds what depends on the distance. Score i belongs to the row row(i), one of
// two, and to the key key(i).
template <int count, class Row, class Key>
__device__ inline void adjust(const AttentionParams& p, float (&scores)[count], const int (&head)[2],
                              const int (&position)[2], Row&& row, Key&& key) {
  if (p.soft_cap > 0) {
    const float inner = p.scale / p.soft_cap;
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] = p.soft_cap * tanh_fast(scores[i] * inner);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] *= p.scale;
  }
  if (p.alibi_slopes != nullptr) {
    const float slopes[2] = {p.alibi_slopes[head[0]], p.alibi_slopes[head[1]]};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      scores[i] = fmaf(row(i) == 0 ? slopes[0] : slopes[1], static_cast<float>(key(i) - position[row(i)]), scores[i]);
    }
  }
  if (p.relative_bias != nullptr) {
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] += distance_bias(p, head[row(i)], position[row(i)], key(i));
  }
}

// Scores of keys that their rows do not see become -inf. Rows that do not exist (position -1) may see any.
template <int count, class Row, class Key>
__device__ inline void mask(const AttentionParams& p, float (&scores)[count], const int (&position)[2], int kv_len,
                            Row&& row, Key&& key) {
  int first[2];
  unsigned beyond[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    first[h] = first_visible(p, position[h]);
    beyond[h] = static_cast<unsigned>(last_visible(p, position[h], kv_len) - first[h]);
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (static_cast<unsigned>(key(i) - first[row(i)]) > beyond[row(i)]) scores[i] = -INFINITY;
  }
}

// Two rows of a lane, as products give them to it: with t = l % 4 for lane l, score i is that of row i / 2 % 2 with key
// i / 4 * 8 + 2 * t + i % 2, and four lanes share the rows. Running maxima of scores and this lane's sums of weights.
// `raise` and `weigh` ask a kernel's own kind of rows for what they see, units of scores and the largest weight.
struct SoftmaxRows {
  static constexpr float kLargest = 0.0f;  // of the weights, in powers of two
  int position[2], head[2];                // position -1: there is no such row
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

  __device__ SoftmaxRows(const PackedRow& a, const PackedRow& b)
      : position{a.position, b.position}, head{a.head, b.head} {}

  // Do both rows see all of these keys?
  __device__ bool see(const AttentionParams& p, int first_key, int last_key, int kv_len) const {
    bool all = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      all &= first_key >= first_visible(p, position[h]) && last_key <= last_visible(p, position[h], kv_len);
    }
    return all;
  }
  // Scores of row h times this are in powers of two.
  __device__ float unit(const AttentionParams& p, int) const { return score_unit(p); }
  // Makes of what the products gave the scores that `adjust` takes.
  template <int count>
  __device__ void restore(float (&)[count]) const {}
};

// What a tile's scores make of the rows: what was summed and mixed before counts `keep` as much, and weights are two to
// the power of a score in units, and `shift`.
struct Rise {
  float keep[2], shift[2];
};

// Adjusts and masks scores, of the keys from `first_key` on, and raises the running maxima to theirs.
template <int count, class Rows>
__device__ inline Rise raise(const AttentionParams& p, Rows& rows, float (&scores)[count], int first_key, int kv_len) {
  const auto row = [](int i) { return i / 2 % 2; };
  const auto key = [&](int i) { return first_key + i / 4 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2; };
  if (!plain_scores(p)) {
    rows.restore(scores);
    adjust(p, scores, rows.head, rows.position, row, key);
  }
  if (!rows.see(p, first_key, first_key + count * 2 - 1, kv_len)) mask(p, scores, rows.position, kv_len, row, key);
  // Both rows' at once: either's is a chain.
  float highest[2] = {rows.top[0], rows.top[1]};
#pragma unroll
  for (int i = 0; i < count; i += 2) {
    float& top = highest[row(i)];
    top = fmaxf(top, fmaxf(scores[i], scores[i + 1]));
  }
#pragma unroll
  for (int lane = 1; lane <= 2; lane *= 2) {
#pragma unroll
    for (float& top : highest) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
  }
  Rise rise;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float unit = rows.unit(p, h);
    // While a row has seen no key, exponents are taken against 0, so that nothing becomes inf - inf.
    const float base = highest[h] == -INFINITY ? 0.0f : highest[h] * unit;
    rise.keep[h] = exp2_fast(rows.top[h] * unit - base);
    rise.shift[h] = Rows::kLargest != 0 ? Rows::kLargest - base : -base;
    rows.top[h] = highest[h];
  }
  return rise;
}

// Raised scores to softmax weights, which are added up.
template <int count, class Rows>
__device__ inline void weigh(const AttentionParams& p, Rows& rows, const Rise& rise, float (&scores)[count]) {
  float sum[2] = {0.0f, 0.0f};
  const float unit[2] = {rows.unit(p, 0), rows.unit(p, 1)};
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int h = i / 2 % 2;
    scores[i] = exp2_fast(fmaf(scores[i], unit[h], rise.shift[h]));
    sum[h] += scores[i];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] = rows.sum[h] * rise.keep[h] + sum[h];
}

// Both.
template <int count, class Rows>
__device__ inline void soften(const AttentionParams& p, Rows& rows, float (&scores)[count], int first_key, int kv_len,
                              float (&keep)[2]) {
  const Rise rise = raise(p, rows, scores, first_key, kv_len);
  weigh(p, rows, rise, scores);
  keep[0] = rise.keep[0], keep[1] = rise.keep[1];
}

// Weights as the tensor cores take them, 16 keys at a time.
template <class T, int count>
__device__ inline void pack(uint32_t (&weights)[count / 8][4], const float (&scores)[count]) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) weights[i / 4][i % 4] = pack2<T>(scores[2 * i], scores[2 * i + 1]);
}

// What the mixed values of row h are multiplied by in the end, with the sink in the sum. By all lanes of a warp.
template <class Rows>
__device__ inline float result_factor(const AttentionParams& p, const Rows& rows, int h) {
  float sum = rows.sum[h];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (p.sinks == nullptr) return 1.0f / sum;
  const float own = rows.top[h] * rows.unit(p, h), sink = p.sinks[rows.head[h]] * kLog2E, top = fmaxf(own, sink);
  const float keep = exp2_fast(own - top);
  float beside = sink - top;
  if constexpr (Rows::kLargest != 0) beside += Rows::kLargest;
  return keep / (sum * keep + exp2_fast(beside));
}

// Eight keys from a multiple of eight on lie side by side in the cache, and a warp copies them as a group; or more of
// them, which divide a block. Which vector is its first: found in two steps, so that the table is read long before the
// result is needed.
class GroupPlace {
 public:
  // Groups without a key in [begin, end) are not looked up.
  __device__ void look_up(const AttentionParams& p, const int32_t* table, int first, int begin, int end, int keys = 8) {
    const int block = static_cast<int>(__umulhi(static_cast<unsigned>(first), p.per_block));
    in_block_ = first - block * p.block_size;
    block_ = first < end && first + keys > begin ? table[block] : -1;
  }
  __device__ void none() { block_ = -1; }
  // -1: none.
  __device__ int vector(const AttentionParams& p, int kv_head) const {
    return block_ < 0 ? -1 : (block_ * p.kv_heads + kv_head) * p.block_size + in_block_;
  }

 private:
  int block_ = -1, in_block_ = 0;
};

// What a lane copies of each vector of `dim` elements in shared memory (16 bytes, or nothing where `elements` end
// before them), and of which keys of a group: those from key() on in steps of kKeys.
template <int dim>
struct CopyLane {
  static constexpr int kPacks = dim / 8, kKeys = 32 / kPacks;
  __device__ static int pack() { return static_cast<int>(threadIdx.x) % 32 % kPacks; }
  __device__ static int key() { return static_cast<int>(threadIdx.x) % 32 / kPacks; }
  __device__ CopyLane(const std::byte* vectors, int64_t stride, int elements)
      : from(vectors + key() * stride * 2 + pack() * 16), vector_bytes(stride * 2), there(pack() < elements / 8) {}

  const std::byte* from;
  int64_t vector_bytes;
  bool there;
};

// A warp copies `groups` groups of keys from `first` on; those outside [begin, end) become zeros. Lane i knows the
// first vector of group i. `to`: where this lane's pack of key CopyLane::key() belongs, packs exchanged in the order of
// rows (SharedRows); rows are `pitch` bytes, a multiple of 128.
template <int dim, int groups, int pitch>
__device__ inline void copy_groups(uint32_t to, const CopyLane<dim>& lane, int vector, int first, int begin, int end) {
  constexpr int kKeys = CopyLane<dim>::kKeys;
  const bool whole = first >= begin && first + groups * 8 <= end;
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const int at = __shfl_sync(0xffffffffu, vector, group);
    const std::byte* from = lane.from + int64_t{max(at, 0)} * lane.vector_bytes;
    if (!lane.there) continue;
    if (whole) {
#pragma unroll
      for (int i = 0; i < 8 / kKeys; ++i) {
        copy_async((to ^ i * kKeys * 16) + (group * 8 + i * kKeys) * pitch, from + i * kKeys * lane.vector_bytes);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8 / kKeys; ++i) {
        const int key = first + group * 8 + i * kKeys + CopyLane<dim>::key();
        const bool valid = key >= begin && key < end;
        copy_async((to ^ i * kKeys * 16) + (group * 8 + i * kKeys) * pitch,
                   valid ? from + i * kKeys * lane.vector_bytes : lane.from, valid);
      }
    }
  }
}

}  // namespace sluice::cuda
