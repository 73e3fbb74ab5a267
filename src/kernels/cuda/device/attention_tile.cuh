// What decode and prefill share: 16 query rows of one kv head against tiles of keys in shared memory, on the tensor
// cores, with an online softmax in the registers (Dao 2023, arXiv:2307.08691).
//
// Rows are packed: the query heads of one kv head lie side by side (row m is token m / group, head m % group), so that
// a key is read once for all of them. Lane l of a warp holds, with g = l / 4 and t = l % 4, scores of rows g and g + 8.
#pragma once

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

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

// Sixteen rows: queries as the tensor cores take them, scores' running maxima and sums, mixed values.
template <class T, int dim>
class QueryTile {
 public:
  __device__ QueryTile(const AttentionParams& p, int sequence, int kv_head, int first_row, int rows, int kv_len)
      : p_(p), g_(threadIdx.x % 32 / 4), t_(threadIdx.x % 4) {
    const int64_t begin = p.query_start[sequence];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row_[h] = packed_row(p, kv_head, first_row + g_ + 8 * h, rows, kv_len);
      first_key_[h] = first_visible(p, row_[h].position);
      last_key_[h] = row_[h].position >= 0 ? last_visible(p, row_[h].position, kv_len) : -1;
      slope_[h] = p.alibi_slopes != nullptr && row_[h].position >= 0 ? p.alibi_slopes[row_[h].head] * kLog2E : 0.0f;
      top_[h] = -INFINITY, sum_[h] = 0.0f;
      const float* q = p.q + (begin + row_[h].token) * p.q_stride + int64_t{row_[h].head} * p.head_dim;
#pragma unroll
      for (int i = 0; i < dim / 8; ++i) {
        const int at = i * 8 + 2 * t_;
        const bool there = row_[h].position >= 0 && at < p.head_dim;
        query_[i / 2][h + i % 2 * 2] = there ? pack2<T>(q[at], q[at + 1]) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed_[i][j] = 0.0f;
    }
  }

  // Keys and values [first_key, first_key + keys) of the sequence lie in rows [row, row + keys) of k and v.
  template <int keys>
  __device__ void attend(const SharedRows<dim>& k, const SharedRows<dim>& v, int row, int first_key) {
    float scores[keys / 8][4];
    multiply_keys<keys>(scores, k, row);
    uint32_t weights[keys / 16][4];
    soften<keys>(scores, weights, first_key);
    mix<keys>(weights, v, row);
  }

  __device__ const PackedRow& packed(int half) const { return row_[half]; }
  __device__ float top(int half) const { return top_[half]; }
  // Of the whole row: lanes hold shares.
  __device__ float sum(int half) const {
    float s = sum_[half];
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    return s + __shfl_xor_sync(0xffffffffu, s, 2);
  }
  // f(half, column, value) for this lane's mixed values.
  template <class F>
  __device__ void each_value(F&& f) const {
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(j / 2, i * 8 + 2 * t_ + j % 2, mixed_[i][j]);
    }
  }

 private:
  template <int keys>
  __device__ void multiply_keys(float (&scores)[keys / 8][4], const SharedRows<dim>& k, int row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < keys / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][j] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < keys / 16; ++i) {
        uint32_t b[4];
        ldmatrix4(b, k.pack(row + i * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        const uint32_t(&a)[4] = query_[step];
        mma<T>(scores[2 * i], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<T>(scores[2 * i + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // Scores to softmax weights relative to the running maximum; what was mixed before is scaled to a new maximum.
  template <int keys>
  __device__ void soften(float (&scores)[keys / 8][4], uint32_t (&weights)[keys / 16][4], int first_key) {
    const int last_key = first_key + keys - 1;
    float highest[2] = {top_[0], top_[1]};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool all = last_key <= last_key_[h] && first_key >= first_key_[h];
#pragma unroll
      for (int i = 0; i < keys / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& s = scores[i][2 * h + j];
          const int key = first_key + i * 8 + 2 * t_ + j;
          s = p_.soft_cap > 0 ? p_.soft_cap * kLog2E * tanhf(s * p_.scale / p_.soft_cap) : s * (p_.scale * kLog2E);
          if (slope_[h] != 0.0f) s += slope_[h] * static_cast<float>(key - row_[h].position);
          if (p_.relative_bias != nullptr) s += distance_bias(p_, row_[h].head, row_[h].position, key) * kLog2E;
          if (!all && (key > last_key_[h] || key < first_key_[h])) s = -INFINITY;
          highest[h] = fmaxf(highest[h], s);
        }
      }
      highest[h] = fmaxf(highest[h], __shfl_xor_sync(0xffffffffu, highest[h], 1));
      highest[h] = fmaxf(highest[h], __shfl_xor_sync(0xffffffffu, highest[h], 2));
      // While a row has seen no key, exponents are taken against 0, so that nothing becomes inf - inf.
      const float base = highest[h] == -INFINITY ? 0.0f : highest[h];
      const float keep = exp2f(top_[h] - base);
      top_[h] = highest[h];
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < keys / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sum += scores[i][2 * h + j] = exp2f(scores[i][2 * h + j] - base);
        weights[i / 2][h + i % 2 * 2] = pack2<T>(scores[i][2 * h], scores[i][2 * h + 1]);
      }
      sum_[h] = sum_[h] * keep + sum;
      if (__any_sync(0xffffffffu, keep != 1.0f)) {
#pragma unroll
        for (int i = 0; i < dim / 8; ++i) mixed_[i][2 * h] *= keep, mixed_[i][2 * h + 1] *= keep;
      }
    }
  }

  template <int keys>
  __device__ void mix(const uint32_t (&weights)[keys / 16][4], const SharedRows<dim>& v, int row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < keys / 16; ++i) {
      const uint32_t(&a)[4] = weights[i];
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) {
        uint32_t b[4];
        ldmatrix4_transposed(b, v.pack(row + i * 16 + lane % 16, d * 2 + lane / 16));
        mma<T>(mixed_[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<T>(mixed_[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  const AttentionParams& p_;
  const int g_, t_;
  PackedRow row_[2];
  int first_key_[2], last_key_[2];  // that the row sees; none: there is no such row
  float slope_[2], top_[2], sum_[2];
  uint32_t query_[dim / 16][4];
  float mixed_[dim / 8][4];
};

// Where key `key` of a sequence lies: the index of its vector among those of one kv head.
__device__ inline int64_t vector_of(const AttentionParams& p, const int32_t* table, int kv_head, int key) {
  const int block = key / p.block_size;
  return (int64_t{table[block]} * p.kv_heads + kv_head) * p.block_size + (key - block * p.block_size);
}

}  // namespace sluice::cuda
