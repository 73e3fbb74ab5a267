// The packed rows of a unit that are decoded: scores, softmax weights and mixed values in the registers of a warp.
#pragma once

#include "kernels/cuda/device/decode_stream.cuh"

namespace sluice::cuda {

// The packed rows of a unit, `tiles` times eight: queries as the tensor cores take them, scores' running maxima and
// sums, mixed values. Lane l of a warp holds, with g = l / 4 and t = l % 4, scores of the queries 2t and 2t + 1 of each
// tile with keys g and g + 8, and their values of dimensions g and g + 8 of every 16. Of a cache of 8 bits a lane
// reads four dimensions of a key side by side, and two of a value: it has queries of 4t .. 4t + 3 of every 16 instead
// of 2t, 2t + 1 and eight further, and values of 2g and 2g + 1.
template <class Cache, int dim, int tiles>
class Queries {
  using T = typename Cached<Cache>::MatmulProblem;
  static constexpr bool kEight = Cached<Cache>::kPerUnit == 2;
  using Rows = SharedPanels<kUnits<Cache, dim>, kStageKeys<Cache, dim>>;
  using Wide = WideOf<Cache>;  // of caches of 8 bits

 public:
  __device__ Queries(const AttentionParams& p, const Work& work, const Unit& unit)
      : p_(p), plain_(plain_scores(p)), unit_(score_unit(p)), slack_(kSlack / unit_), kv_len_(unit.kv_len) {
    const int first = work.row(unit, 0).position, last = work.row(unit, tiles * kQueries - 1).position;
    all_see_from_ = first_visible(p, last < 0 ? unit.kv_len - 1 : last);
    all_see_to_ = last_visible(p, first, unit.kv_len);
    const bool pairs = pairs_of_queries(p);
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const PackedRow row = work.row(unit, n * kQueries + 2 * t() + j);
        position_[n][j] = row.position, head_[n][j] = row.head;
        top_[n][j] = limit_[n][j] = -INFINITY, base_[n][j] = sum_[n][j] = 0.0f;
      }
      const PackedRow own = work.row(unit, n * kQueries + g());
      const int64_t begin = int64_t{unit.first_token + own.token} * p.q_stride + int64_t{own.head} * p.head_dim;
      with_queries(p, [&](const auto* q) {
#pragma unroll
        for (int i = 0; i < dim / 8; ++i) {
          const int at = kEight ? i / 2 * 16 + 4 * t() + i % 2 * 2 : i * 8 + 2 * t();
          const bool there = own.position >= 0 && at < p.head_dim;
          const float2 values = there ? query_pair(q + begin + at, pairs) : float2{0.0f, 0.0f};
          query_[n][i / 2][i % 2] = pack2<T>(values.x, values.y);
        }
      });
#pragma unroll
      for (int i = 0; i < dim / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mixed_[n][i][j] = 0.0f;
      }
    }
  }

  // Keys and values [first_key, first_key + keys) of the sequence lie in the rows of k and v; `scales`, where the cache
  // has some, are those of the keys, then those of the values.
  template <int keys>
  __device__ void attend(const Rows& k, const Rows& v, const float* scales, int first_key) {
    float scores[tiles][keys / 4];
    multiply_keys<keys>(scores, k);
    const bool all = first_key >= all_see_from_ && first_key + keys - 1 <= all_see_to_;
    uint32_t weights[tiles][keys / 16][2];
#pragma unroll
    for (int n = 0; n < tiles; ++n) soften<keys>(n, scores[n], weights[n], scales, first_key, all);
    mix<keys>(weights, v);
  }

  // The only chunk of its sequence: results.
  __device__ void write(const Unit& unit) const {
    each_row([&](int n, int j, float whole) {
      const float own = top_[n][j] * unit_;
      const float sink = p_.sinks != nullptr ? p_.sinks[head_[n][j]] * kLog2E : -INFINITY;
      const float top = fmaxf(own, sink), keep = exp2_fast(own - top);
      const float factor = keep / (whole * keep + (p_.sinks != nullptr ? exp2_fast(sink - top) : 0.0f));
      const int token = unit.first_token + position_[n][j] - (unit.kv_len - unit.rows);
      const int64_t at = token * p_.out_stride + int64_t{head_[n][j]} * p_.value_dim;
      each_value(n, j, factor, [&](int d, float value) { put_result(p_, at + d, value); });
    });
  }

  // One of several: to its slot.
  __device__ void store(const Partials& to, int64_t slot) const {
    each_row([&](int n, int j, float whole) {
      const int64_t row = slot * to.rows + n * kQueries + 2 * t() + j;
      if (g() == 0) to.sums[row] = {top_[n][j] * unit_, whole};
      float* values = to.values + row * p_.value_dim;
      each_value(n, j, 1.0f, [&](int d, float value) { values[d] = value; });
    });
  }

 private:
  __device__ static int g() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }

  // Calls f(n, j, sum of weights) for the rows of this lane that there are.
  template <class F>
  __device__ void each_row(F&& f) const {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float whole = sum(n, j);
        if (position_[n][j] >= 0) f(n, j, whole);
      }
    }
  }

  // Of the whole row: lanes hold shares.
  __device__ float sum(int n, int j) const {
    float s = sum_[n][j];
    s += __shfl_xor_sync(kFullWarp, s, 4);
    s += __shfl_xor_sync(kFullWarp, s, 8);
    return s + __shfl_xor_sync(kFullWarp, s, 16);
  }

  // This lane's mixed values of query 2t + j, times a factor, with their places in the row's vector.
  template <class F>
  __device__ void each_value(int n, int j, float factor, F&& put) const {
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
      const int at = kEight ? i / 2 * 16 + 2 * g() + i % 2 : i * 8 + g();
      if (i * 8 < p_.value_dim) put(at, mixed_[n][i / 2][i % 2 * 2 + j] * factor);
    }
  }

  template <int keys>
  __device__ void multiply_keys(float (&scores)[tiles][keys / 4], const Rows& k) const {
    // A product waits for the one it adds to: every other step has a sum of its own.
    constexpr int kSums = tiles == 1 ? 2 : 1;
    const int lane = threadIdx.x % kWarp;
    const auto packs = k.lane(lane % 16, lane / 16);
    float sums[kSums][tiles][keys / 4] = {};
    const auto multiply = [&](int step, int m, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        mma<T>(sums[step % kSums][n] + 4 * m, a0, a1, a2, a3, query_[n][step][0], query_[n][step][1]);
      }
    };
    constexpr int kSteps = kEight ? 2 : 1;  // of four matrices of 16 bytes a row
#pragma unroll
    for (int step = 0; step < dim / 16; step += kSteps) {
#pragma unroll
      for (int m = 0; m < keys / 16; ++m) {
        uint32_t a[4];
        ldmatrix4(a, packs.pack(m, step / kSteps));
        if constexpr (kEight) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t low = a[2 * i], high = a[2 * i + 1];  // keys g and g + 8
            multiply(step + i, m, Wide::low(low), Wide::low(high), Wide::high(low), Wide::high(high));
          }
        } else {
          multiply(step, m, a[0], a[1], a[2], a[3]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i)
        scores[n][i] = kSums == 1 ? sums[0][n][i] : sums[0][n][i] + sums[kSums - 1][n][i];
    }
  }

  // Scores to softmax weights relative to a base, which is a maximum of earlier scores and rises only when one exceeds
  // it by 2^kSlack: then what was mixed before is scaled.
  template <int keys>
  __device__ void soften(int n, float (&scores)[keys / 4], uint32_t (&weights)[keys / 16][2],
                         [[maybe_unused]] const float* scales, int first_key, bool all) {
    if constexpr (kScaled<Cache>) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) scores[i] *= scales[i / 2 * 8 + g()];
    }
    const auto row = [](int i) { return i % 2; };
    const auto key = [&](int i) { return first_key + i / 2 * 8 + g(); };
    if (!plain_) adjust(p_, scores, head_[n], position_[n], row, key);
    if (!all) mask(p_, scores, position_[n], kv_len_, row, key);
    float highest[2] = {scores[0], scores[1]};
#pragma unroll
    for (int i = 2; i < keys / 4; ++i) highest[i % 2] = fmaxf(highest[i % 2], scores[i]);
    if (__any_sync(kFullWarp, highest[0] > limit_[n][0] || highest[1] > limit_[n][1])) raise(n, highest);
#pragma unroll
    for (int i = 0; i < keys / 4; ++i) {
      scores[i] = exp2_fast(fmaf(scores[i], unit_, -base_[n][i % 2]));
      sum_[n][i % 2] += scores[i];
    }
    if constexpr (kScaled<Cache>) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) scores[i] *= scales[keys + i / 2 * 8 + g()];
    }
#pragma unroll
    for (int i = 0; i < keys / 8; ++i) weights[i / 2][i % 2] = transpose(pack2<T>(scores[2 * i], scores[2 * i + 1]));
  }

  // `highest`: of this lane's scores.
  __device__ void raise(int n, const float (&highest)[2]) {
    float keep[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float top = highest[j];
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 4));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 8));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 16));
      if (!(top > limit_[n][j])) top = top_[n][j];  // a row's bits do not depend on the others of its tile
      // While a row has seen no key, exponents are taken against 0, so that nothing becomes inf - inf.
      base_[n][j] = top == -INFINITY ? 0.0f : top * unit_;
      keep[j] = exp2_fast(top_[n][j] * unit_ - base_[n][j]);
      top_[n][j] = top;
      limit_[n][j] = top + slack_;
      sum_[n][j] *= keep[j];
    }
#pragma unroll
    for (int i = 0; i < dim / 16; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) mixed_[n][i][c] *= keep[c % 2];
    }
  }

  template <int keys>
  __device__ void mix(const uint32_t (&weights)[tiles][keys / 16][2], const Rows& v) {
    const int lane = threadIdx.x % kWarp;
    const auto packs = kEight ? v.lane(lane % 16, lane / 16) : v.lane(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const auto add = [&](int m, int i, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) mma<T>(mixed_[n][i], a0, a1, a2, a3, weights[n][m][0], weights[n][m][1]);
    };
    constexpr int kSteps = kEight ? 2 : 1;
#pragma unroll
    for (int m = 0; m < keys / 16; ++m) {
#pragma unroll
      for (int i = 0; i < dim / 16; i += kSteps) {
        uint32_t a[4];
        ldmatrix4_transposed(a, packs.pack(m, i / kSteps));
        if constexpr (kEight) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            // Keys 2t and 2t + 1, then 8 more, each with dimensions 2g and 2g + 1: brought together by dimension.
            const uint32_t low = __byte_perm(a[2 * j], 0, 0x3120), high = __byte_perm(a[2 * j + 1], 0, 0x3120);
            add(m, i + j, Wide::low(low), Wide::high(low), Wide::low(high), Wide::high(high));
          }
        } else {
          add(m, i, a[0], a[1], a[2], a[3]);
        }
      }
    }
  }

  static constexpr float kSlack = 6.0f;  // powers of two: weights are up to 64

  const AttentionParams& p_;
  const bool plain_;
  const float unit_, slack_;  // of scores, in powers of two; kSlack in scores
  const int kv_len_;
  int all_see_from_, all_see_to_;  // the first and the last key that every row sees
  int position_[tiles][2], head_[tiles][2];
  float top_[tiles][2], base_[tiles][2], limit_[tiles][2], sum_[tiles][2];  // base_: top_ in powers of two
  uint32_t query_[tiles][dim / 16][2];
  float mixed_[tiles][dim / 16][4];
};

}  // namespace sluice::cuda
