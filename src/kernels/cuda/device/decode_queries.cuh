// The packed query rows of a decode unit: scores, softmax weights and mixed values in the registers of a warp.
#pragma once

#include "kernels/cuda/device/decode_stream.cuh"

namespace sluice::cuda {

// The packed rows of a unit, `tiles` times eight: queries as tensor-core operands, running maxima and sums of the
// scores, mixed values. With g = l / 4 and t = l % 4, lane l of a warp holds scores of queries 2t and 2t + 1 of each
// tile with keys g and g + 8. Of their values it holds dimensions g and g + 8 of every 16.
//
// From an 8-bit cache a lane reads four consecutive dimensions of a key and two of a value. So it holds dimensions 4t
// .. 4t + 3 of every 16 of the queries instead of 2t, 2t + 1 and those eight further on. Of values it holds dimensions
// 2g and 2g + 1.
template <class Cache, int dim, int tiles, class Params>
class Queries {
  using T = typename Cached<Cache>::Operand;
  static constexpr bool kEight = Cached<Cache>::kPerUnit == 2;
  using Rows = SharedPanels<kUnits<Cache, dim>, kStageKeys<Cache, dim>>;
  using Wide = WideOf<Cache>;  // for caches of 8 bits

 public:
  __device__ Queries(const Params& p, const Work<Params>& work, const Unit& unit)
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

  // Attends to keys and values [first_key, first_key + keys) of the sequence, which lie in the rows of k and v. Where
  // the cache has scales, `scales` holds those of the keys, then those of the values.
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

  // Writes the results of a unit that is the only chunk of its sequence.
  __device__ void write(const Unit& unit) const {
    each_row([&](int n, int j, float whole) {
      const float own = top_[n][j] * unit_;
      const float sink = p_.sinks != nullptr ? p_.sinks[head_[n][j]] * kLog2E : -INFINITY;
      const float top = fmaxf(own, sink), keep = exp2_fast(own - top);
      float factor = keep / (whole * keep + (p_.sinks != nullptr ? exp2_fast(sink - top) : 0.0f));
      const int token = unit.first_token + position_[n][j] - (unit.kv_len - unit.rows);
      const int64_t at = token * p_.out_stride + int64_t{head_[n][j]} * p_.value_dim;
      if constexpr (kOfPart<Params>) {
        if (whole == 0.0f) factor = 0.0f;  // the row saw no key
        if (g() == 0) put_log_sum(p_, token, head_[n][j], own, whole);
      }
      each_value(n, j, factor, [&](int d, float value) { put_result(p_, at + d, value); });
    });
  }

  // Stores the results of one of several chunks in its slot.
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

  // Calls f(n, j, sum of weights) for the rows of this lane that exist.
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

  // The sum over the whole row, of which each lane holds a share.
  __device__ float sum(int n, int j) const {
    float s = sum_[n][j];
    s += __shfl_xor_sync(kFullWarp, s, 4);
    s += __shfl_xor_sync(kFullWarp, s, 8);
    return s + __shfl_xor_sync(kFullWarp, s, 16);
  }

  // Calls put(index in the row's vector, value) for this lane's mixed values of query 2t + j, times a factor.
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
    // A matmul instruction waits for the one whose sum it adds to, so every other step has a sum of its own.
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
    constexpr int kSteps = kEight ? 2 : 1;  // every four matrices have 16 bytes per row
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

  // Turns scores into softmax weights relative to a base. The base is a maximum of earlier scores and rises only when a
  // score exceeds it by more than kSlack powers of two. Only then the values mixed before are rescaled.
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

  // `highest`: the maxima of this lane's scores.
  __device__ void raise(int n, const float (&highest)[2]) {
    float keep[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float top = highest[j];
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 4));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 8));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 16));
      if (!(top > limit_[n][j])) top = top_[n][j];  // a row's bits do not depend on the other rows of its tile
      // While a row has seen no key, exponents are relative to 0, so that inf - inf never occurs.
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
            // Words hold keys 2t and 2t + 1, then those 8 further on, each with dimensions 2g and 2g + 1. Brings
            // together what has the same dimension.
            const uint32_t low = __byte_perm(a[2 * j], 0, 0x3120), high = __byte_perm(a[2 * j + 1], 0, 0x3120);
            add(m, i + j, Wide::low(low), Wide::high(low), Wide::low(high), Wide::high(high));
          }
        } else {
          add(m, i, a[0], a[1], a[2], a[3]);
        }
      }
    }
  }

  static constexpr float kSlack = 6.0f;  // powers of two: weights are at most 64

  const Params& p_;
  const bool plain_;
  const float unit_, slack_;  // unit_: scores times this are exponents of two; slack_: kSlack in units of scores
  const int kv_len_;
  int all_see_from_, all_see_to_;  // the first and the last key that every row sees
  int position_[tiles][2], head_[tiles][2];
  float top_[tiles][2], base_[tiles][2], limit_[tiles][2], sum_[tiles][2];  // base_: top_ as an exponent of two
  uint32_t query_[tiles][dim / 16][2];
  float mixed_[tiles][dim / 16][4];
};

}  // namespace sluice::cuda
