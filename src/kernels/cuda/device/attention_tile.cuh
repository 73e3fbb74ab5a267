// What the attention kernels share: packed rows, the copies of keys and values to shared memory and their layout there,
// and the online softmax in registers (Dao 2023, arXiv:2307.08691).
//
// Rows are packed: the query heads of one kv head lie side by side. Row m is token m / group, head m % group. So a key
// is read once for all of them.
#pragma once

#include <climits>

#include "kernels/cuda/device/attention_queries.cuh"
#include "kernels/cuda/device/attention_results.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/visible_keys.cuh"

namespace sluice::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// Vectors of `dim` elements of 16 bits in shared memory. Packs of 16 bytes are swizzled within a row so that eight rows
// of one column lie in eight different groups of banks.
template <int dim>
struct SharedRows {
  static constexpr int kPacks = dim / 8;
  uint32_t base;
  __device__ uint32_t pack(int row, int pack) const {
    return base + (row * kPacks + (pack & ~7) + ((pack ^ row) & 7)) * 16;
  }
};

// Clears the packs beyond the vectors' own, which the tensor cores also read.
template <int dim>
__device__ inline void clear_beyond(uint4* rows, int count, int elements, int threads) {
  const SharedRows<dim> shared{0};
  const int own = elements / 8, beyond = SharedRows<dim>::kPacks - own;
  for (int i = threadIdx.x; i < count * beyond; i += threads) {
    rows[shared.pack(i / beyond, own + i % beyond) / 16] = {0, 0, 0, 0};
  }
}

// Which row a packed row is.
struct PackedRow {
  int token;     // index among its sequence's rows
  int head;      // index among all query heads
  int position;  // -1: there is no such row
};

__device__ inline PackedRow packed_row(const AttentionParams& p, int kv_head, int index, int rows, int kv_len) {
  const int token = index / p.group;
  return {token, kv_head * p.group + index % p.group, token < rows ? kv_len - rows + token : -1};
}

// Whether scores are scaled and nothing else.
__device__ inline bool plain_scores(const AttentionParams& p) {
  return p.soft_cap <= 0 && p.alibi_slopes == nullptr && p.relative_bias == nullptr;
}
// Scores times this are exponents of two. Plain scores are taken as the matmul gives them, others after adjust().
__device__ inline float score_unit(const AttentionParams& p) { return plain_scores(p) ? p.scale * kLog2E : kLog2E; }

// Scales and caps the scores of a lane and adds the terms that depend on the distance. Score i belongs to row row(i),
// one of two, and to key key(i).
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

// Sets scores of keys that their rows do not see to -inf. Rows that do not exist (position -1) may see any key.
template <int count, class Params, class Row, class Key>
__device__ inline void mask(const Params& p, float (&scores)[count], const int (&position)[2], int kv_len, Row&& row,
                            Key&& key) {
  int first[2];
  unsigned beyond[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    first[h] = first_visible(p, position[h]);
    beyond[h] = static_cast<unsigned>(last_visible(p, position[h], kv_len) - first[h]);
    if constexpr (kOfPart<Params>) {
      if (beyond[h] > INT_MAX) first[h] = INT_MAX, beyond[h] = 0;  // the row sees no key
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (static_cast<unsigned>(key(i) - first[row(i)]) > beyond[row(i)]) scores[i] = -INFINITY;
  }
}

// The two rows of a lane, with running maxima of scores and this lane's sums of weights. With t = l % 4, score i of
// lane l is that of row i / 2 % 2 with key i / 4 * 8 + 2 * t + i % 2, as the tensor cores leave it. Four lanes share
// the rows. raise() and weigh() call the members of a kernel's own row type for what rows see, the unit of scores and
// the largest weight.
struct SoftmaxRows {
  static constexpr float kLargest = 0.0f;  // the largest weight, as an exponent of two
  int position[2], head[2];                // position -1: there is no such row
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};

  __device__ SoftmaxRows(const PackedRow& a, const PackedRow& b)
      : position{a.position, b.position}, head{a.head, b.head} {}

  // Whether both rows see all of these keys.
  template <class Params>
  __device__ bool see(const Params& p, int first_key, int last_key, int kv_len) const {
    bool all = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      all &= first_key >= first_visible(p, position[h]) && last_key <= last_visible(p, position[h], kv_len);
    }
    return all;
  }
  // Scores of row h times this are exponents of two.
  __device__ float unit(const AttentionParams& p, int) const { return score_unit(p); }
  // Turns what the matmul gave into the scores that adjust() takes.
  template <int count>
  __device__ void restore(float (&)[count]) const {}
};

// How a tile's scores change the rows. Earlier sums and mixed values are multiplied by `keep`. Weights are two to the
// power of a score in units plus `shift`.
struct Rise {
  float keep[2], shift[2];
};

// Adjusts and masks the scores of the keys from `first_key` on, and raises the running maxima to theirs.
template <int count, class Params, class Rows>
__device__ inline Rise raise(const Params& p, Rows& rows, float (&scores)[count], int first_key, int kv_len) {
  const auto row = [](int i) { return i / 2 % 2; };
  const auto key = [&](int i) { return first_key + i / 4 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2; };
  if (!plain_scores(p)) {
    rows.restore(scores);
    adjust(p, scores, rows.head, rows.position, row, key);
  }
  if (!rows.see(p, first_key, first_key + count * 2 - 1, kv_len)) mask(p, scores, rows.position, kv_len, row, key);
  // The maxima of both rows are computed together, as each is a chain of dependent instructions.
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
    // While a row has seen no key, exponents are relative to 0, so that inf - inf never occurs.
    const float base = highest[h] == -INFINITY ? 0.0f : highest[h] * unit;
    rise.keep[h] = exp2_fast(rows.top[h] * unit - base);
    rise.shift[h] = Rows::kLargest != 0 ? Rows::kLargest - base : -base;
    rows.top[h] = highest[h];
  }
  return rise;
}

// Turns raised scores into softmax weights and adds these up.
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

// raise() and weigh() in one call.
template <int count, class Params, class Rows>
__device__ inline void soften(const Params& p, Rows& rows, float (&scores)[count], int first_key, int kv_len,
                              float (&keep)[2]) {
  const Rise rise = raise(p, rows, scores, first_key, kv_len);
  weigh(p, rows, rise, scores);
  keep[0] = rise.keep[0], keep[1] = rise.keep[1];
}

// Packs weights as tensor-core operands, 16 keys at a time.
template <class T, int count>
__device__ inline void pack(uint32_t (&weights)[count / 8][4], const float (&scores)[count]) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) weights[i / 4][i % 4] = pack2<T>(scores[2 * i], scores[2 * i + 1]);
}

// The factor of the mixed values of row h at the end, with the sink in the sum. Called by all lanes of a warp.
template <class Params, class Rows>
__device__ inline float result_factor(const Params& p, const Rows& rows, int h) {
  float sum = rows.sum[h];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if constexpr (kOfPart<Params>) return sum == 0.0f ? 0.0f : 1.0f / sum;  // there are no sinks
  if (p.sinks == nullptr) return 1.0f / sum;
  const float own = rows.top[h] * rows.unit(p, h), sink = p.sinks[rows.head[h]] * kLog2E, top = fmaxf(own, sink);
  const float keep = exp2_fast(own - top);
  float sink_exponent = sink - top;
  if constexpr (Rows::kLargest != 0) sink_exponent += Rows::kLargest;
  return keep / (sum * keep + exp2_fast(sink_exponent));
}

// Writes the log sum of row h, which is row `token` of the batch. Called by all lanes of a warp.
template <class Rows>
__device__ inline void put_log_sum(const PartParams& p, const Rows& rows, int h, int64_t token) {
  float sum = rows.sum[h];
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  if (rows.position[h] < 0 || threadIdx.x % 4 != 0) return;
  put_log_sum(p, token, rows.head[h], rows.top[h] * rows.unit(p, h), sum);
}

// Finds the vector where a group of keys begins. A group is eight keys from a multiple of eight on, or more keys, as
// long as groups divide a cache block. They are consecutive in the cache, and a warp copies them together. The search
// has two steps, so that the block table is read long before the result is needed.
class GroupPlace {
 public:
  // Looks up the group unless it has no key in [begin, end).
  __device__ void look_up(const AttentionParams& p, const int32_t* table, int first, int begin, int end, int keys = 8) {
    const int block = static_cast<int>(__umulhi(static_cast<unsigned>(first), p.per_block));
    in_block_ = first - block * p.block_size;
    block_ = first < end && first + keys > begin ? table[block] : -1;
  }
  __device__ void none() { block_ = -1; }
  // -1: no group was looked up.
  __device__ int vector(const AttentionParams& p, int kv_head) const {
    return block_ < 0 ? -1 : (block_ * p.kv_heads + kv_head) * p.block_size + in_block_;
  }

 private:
  int block_ = -1, in_block_ = 0;
};

// What a lane copies of each vector of `dim` elements in shared memory: 16 bytes, or nothing beyond `elements`. It
// copies keys key(), key() + kKeys and so on of a group.
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

// Copies `groups` groups of keys from `first` on, with zeros for keys outside [begin, end). Called by whole warps; lane
// i knows the first vector of group i. `to` is where this lane's pack of key CopyLane::key() belongs, with packs
// swizzled by row (SharedRows). Rows have `pitch` bytes, a multiple of 128.
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
