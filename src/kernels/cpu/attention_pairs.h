// Attention on pairs of bf16 (vdpbf16ps). It serves caches of bf16, and of 8-bit floats and int8, which bf16 represents
// exactly. Queries and softmax weights are rounded to bf16; multiplications and sums are fp32. Included by attention.cc
// only.
//
// Keys are processed in spans of kSpan at absolute positions, rows in groups of kGroupRows. Nothing is transposed.
// Scores have the rows in their lanes, two lanes each: a broadcast of four elements of a key meets four elements of
// every row's query. Softmax runs down the keys, without sums across lanes. Values are paired as they are stored, which
// permutes the columns until the split ends. A Zen 5 thread needs 16 cycles for the dot products of a key of 64 with 8
// rows; memory delivers the key's 256 bytes in 24.
#pragma once

#include "kernels/cpu/attention_plan.h"

#ifdef __AVX512BF16__
namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kSpan = 128;     // keys per span
constexpr int64_t kGroupRows = 8;  // rows whose scores share a vector
constexpr int64_t kGroups = kMaxRows / kGroupRows;
constexpr int64_t kRun = 8;                         // consecutive keys within a block
constexpr int64_t kStagedColumns = 64;              // columns of keys staged at a time
constexpr int64_t kKeyStride = kStagedColumns + 4;  // each key starts one L1 bank further
constexpr int64_t kKeys = 16;                       // keys multiplied together
constexpr int64_t kMixedColumns = 32;               // columns of values mixed at a time

// Load 32 elements as bf16. The version with `count` fills the rest with zeros.
SLUICE_INLINE __m512i load_bf16(const Bf16* p) { return _mm512_loadu_si512(p); }
SLUICE_INLINE __m512i load_bf16(const Bf16* p, int64_t count) {
  if (count >= 32) return load_bf16(p);
  return _mm512_maskz_loadu_epi16(_cvtu32_mask32((1u << count) - 1), p);
}

template <class E>
requires requires { E::kMantissa; }
SLUICE_INLINE __m512i load_bf16(const E* p) {
  return fp8_to_bf16<E>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <class E>
requires requires { E::kMantissa; }
SLUICE_INLINE __m512i load_bf16(const E* p, int64_t count) {
  if (count >= 32) return load_bf16(p);
  return fp8_to_bf16<E>(_mm256_maskz_loadu_epi8(_cvtu32_mask32((1u << count) - 1), p));
}

SLUICE_INLINE __m512i load_bf16(const Int8* p) {
  return int8_to_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SLUICE_INLINE __m512i load_bf16(const Int8* p, int64_t count) {
  if (count >= 32) return load_bf16(p);
  return int8_to_bf16(_mm256_maskz_loadu_epi8(_cvtu32_mask32((1u << count) - 1), p));
}

// 2^x with relative error below 3e-6: weights are rounded to bf16 anyway. Exactly 1 at 0, 0 at -infinity.
SLUICE_INLINE Vec exp2(Vec x) {
  const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
  Vec p = broadcast(0.0134266848f);
  p = fma(p, f, broadcast(0.0522424728f));
  p = fma(p, f, broadcast(0.241280198f));
  p = fma(p, f, broadcast(0.693044841f));
  p = fma(p, f, broadcast(1.0f));
  return _mm512_scalef_ps(p, x);  // times 2^floor(x)
}

// In vectors of a group's rows, row r has the lanes 4 * (r / 2) + r % 2 and two further: one for even keys, one for odd
// keys.
constexpr int row_of_lane(int lane) { return lane / 4 * 2 + lane % 2; }
constexpr int lane_of_row(int row) { return row / 2 * 4 + row % 2; }
SLUICE_INLINE Vec swap_keys(Vec x) { return _mm512_permute_ps(x, 0x4e); }
struct LaneKeys {
  alignas(64) int32_t odd[kLanes];
};
inline constexpr LaneKeys kLaneKeys{{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}};

// scores[key][2 * row + half] += dot products over alternate pairs of columns: columns 4i and 4i + 1 in one half, the
// next two in the other.
struct PairScores {
  const float* queries;  // [quads][kLanes]: four columns of every row
  const Bf16* keys;      // [kKeys][kKeyStride]
  float* scores;         // [kKeys][kLanes]
  int64_t quads;         // quads in these columns
  bool first;            // whether to overwrite the scores
};
template <class Ask>
SLUICE_INLINE void multiply_pairs(const PairScores& p, Ask&& ask) {
  Vec acc[kKeys];
  SLUICE_UNROLL
  for (int j = 0; j < kKeys; ++j) acc[j] = p.first ? zero() : load(p.scores + j * kLanes, All{});
  for (int64_t i = 0; i < p.quads; ++i) {
    ask(i);
    const Vec q = load(p.queries + i * kLanes, All{});
    SLUICE_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      int64_t quad;
      __builtin_memcpy(&quad, p.keys + j * kKeyStride + 4 * i, sizeof quad);
      acc[j] = dot_pairs(acc[j], _mm512_castsi512_ps(_mm512_set1_epi64(quad)), q);
    }
  }
  SLUICE_UNROLL
  for (int j = 0; j < kKeys; ++j) store(p.scores + j * kLanes, acc[j], All{});
}

// The rows of one task, over a cache with elements of type T.
template <class T>
class PairTiles {
 public:
  static int64_t floats(const Plan& plan) {
    return kGroups * (query_floats(plan) + kSpan * kLanes + 3 * kLanes) + kKeys * kKeyStride +
           kSpan / 2 * (kLanes + kGroupRows) + kMaxRows * mixed_stride(plan) + 2 * kSpan;
  }

  PairTiles(const ops::AttentionArgs& args, const Plan& plan, const Task& task, float* memory)
      : args_(args), plan_(plan), task_(task), groups_((task.rows() + kGroupRows - 1) / kGroupRows) {
    queries_ = memory;
    scores_ = queries_ + kGroups * query_floats(plan);
    tops_ = scores_ + kGroups * kSpan * kLanes;
    sums_ = tops_ + kGroups * kLanes;
    correction_ = sums_ + kGroups * kLanes;
    softened_ = correction_ + kGroups * kLanes;
    weights_ = softened_ + kSpan / 2 * kLanes;
    mixed_ = weights_ + kSpan / 2 * kGroupRows;
    key_scales_ = mixed_ + kMaxRows * mixed_stride(plan);
    value_scales_ = key_scales_ + kSpan;
    keys_ = reinterpret_cast<Bf16*>(value_scales_ + kSpan);
    load_queries();
  }

  void attend_split(int64_t split, const State& state) {
    for (int64_t i = 0; i < groups_; ++i) {
      store(tops_ + i * kLanes, broadcast(kMinusInfinity), All{});
      store(sums_ + i * kLanes, zero(), All{});
    }
    for (int64_t i = 0; i < task_.rows() * mixed_stride(plan_); i += kLanes) store(mixed_ + i, zero(), All{});
    const int64_t first = max_of(split * kSplit, first_key(args_, task_.first_position) / kSpan * kSpan);
    const int64_t last = min_of((split + 1) * kSplit - 1, last_key(args_, task_));
    find_runs(first, span_runs_);
    for (int64_t span = first; span <= last; span += kSpan) {
      find_runs(span + kSpan, next_runs_);
      attend_span(span);
      span_runs_ = next_runs_;
    }
    write(state);
  }

 private:
  struct Runs {  // runs of kRun keys each; null where no row sees any key
    const T* keys[kSpan / kRun];
    const T* values[kSpan / kRun];
    const float *key_scales[kSpan / kRun], *value_scales[kSpan / kRun];  // if the cache has scales
  };
  // The keys of a span that the rows of a group see: each row sees [low, high), all rows see [all_low, all_high), which
  // is whole pairs.
  struct Sight {
    alignas(64) int32_t low[kLanes], high[kLanes];  // per lane
    int32_t row_low[kGroupRows], row_high[kGroupRows];
    int32_t least, most, all_low, all_high;
  };

  static int64_t query_floats(const Plan& plan) { return round_up(plan.head_dim, kStagedColumns) / 4 * kLanes; }
  static int64_t mixed_stride(const Plan& plan) { return round_up(plan.value_dim, kMixedColumns); }
  int64_t rows_of(int64_t group) const { return min_of(task_.rows() - group * kGroupRows, kGroupRows); }
  int64_t position_of(int64_t row) const { return task_.first_position + row / task_.heads; }

  // queries[group][quad][2 * row + half]: two columns each.
  void load_queries() {
    const int64_t quads = query_floats(plan_) / kLanes;
    alignas(64) Bf16 narrow[kLanes];
    for (int64_t i = 0; i < groups_ * query_floats(plan_); i += kLanes) store(queries_ + i, zero(), All{});
    for (int64_t row = 0; row < task_.rows(); ++row) {
      const float* q = query_of(args_, plan_, task_, row);
      float* to = queries_ + row / kGroupRows * quads * kLanes + row % kGroupRows * 2;
      for (int64_t d = 0; d < plan_.head_dim; d += kLanes) {
        const int64_t count = min_of(plan_.head_dim - d, kLanes);
        store(narrow, count == kLanes ? load(q + d, All{}) : load(q + d, First{static_cast<int>(count)}), All{});
        for (int64_t i = 0; i < kLanes; i += 4) __builtin_memcpy(to + (d + i) / 4 * kLanes, narrow + i, 8);
      }
    }
  }

  void find_runs(int64_t span, Runs& runs) const {
    const ops::CacheTensor &keys = args_.k_cache, &values = values_of(args_);
    const int64_t first = first_key(args_, task_.first_position), last = last_key(args_, task_);
    const int64_t kv_heads = keys.shape[1], block_size = keys.shape[2];
    const int32_t* block = args_.block_table.data() + task_.sequence * args_.block_table_stride + span / block_size;
    int64_t offset = span % block_size;
    for (int64_t i = 0; i < kSpan / kRun; ++i, offset += kRun) {
      const int64_t key = span + i * kRun;
      if (offset == block_size) ++block, offset = 0;
      const bool seen = key + kRun > first && key <= last;
      const int64_t row = seen ? (*block * kv_heads + task_.kv_head) * block_size + offset : 0;
      runs.keys[i] = seen ? reinterpret_cast<const T*>(keys.data) + row * keys.shape[3] : nullptr;
      runs.values[i] = seen ? reinterpret_cast<const T*>(values.data) + row * values.shape[3] : nullptr;
      if constexpr (kScaled<T>) runs.key_scales[i] = keys.scales + row, runs.value_scales[i] = values.scales + row;
    }
  }

  // Fills `sight`. Returns false when no row of the group sees any key of the span.
  bool look(int64_t span, int64_t group, Sight& sight) const {
    const int64_t rows = rows_of(group);
    int64_t position = -1;
    int32_t low = 0, high = 0;
    sight.least = kSpan, sight.most = 0, sight.all_low = 0, sight.all_high = kSpan;
    for (int64_t r = 0; r < rows; ++r) {
      if (position_of(group * kGroupRows + r) != position) {
        position = position_of(group * kGroupRows + r);
        low = static_cast<int32_t>(min_of(max_of(first_key(args_, position) - span, 0), kSpan));
        high = static_cast<int32_t>(max_of(min_of(last_key(args_, task_, position) - span + 1, kSpan), low));
      }
      sight.row_low[r] = low, sight.row_high[r] = high;
      sight.all_low = static_cast<int32_t>(max_of(sight.all_low, low));
      sight.all_high = static_cast<int32_t>(min_of(sight.all_high, high));
      if (low == high) continue;
      sight.least = static_cast<int32_t>(min_of(sight.least, low));
      sight.most = static_cast<int32_t>(max_of(sight.most, high));
    }
    sight.all_low = (sight.all_low + 1) / 2 * 2;
    sight.all_high = static_cast<int32_t>(max_of(sight.all_high / 2 * 2, sight.all_low));
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool row = row_of_lane(lane) < rows;
      sight.low[lane] = row ? sight.row_low[row_of_lane(lane)] : 0;
      sight.high[lane] = row ? sight.row_high[row_of_lane(lane)] : 0;
    }
    return sight.most > sight.least;
  }

  // Loads the scales of a span. Keys that no row sees get arbitrary numbers.
  void load_scales() const {
    for (int64_t i = 0; i < kSpan / kRun; ++i) {
      __builtin_memcpy(key_scales_ + i * kRun, span_runs_.key_scales[i], kRun * sizeof(float));
      __builtin_memcpy(value_scales_ + i * kRun, span_runs_.value_scales[i], kRun * sizeof(float));
    }
  }
  // Returns the scales of a pair of keys in their lanes.
  SLUICE_INLINE static Vec scales_of(const float* pair) {
    double both;
    __builtin_memcpy(&both, pair, sizeof both);
    return _mm512_permute_ps(_mm512_castpd_ps(_mm512_set1_pd(both)), 0x50);
  }
  // Returns weights times the scales of the values. Keys that a row does not see keep the weight 0.
  SLUICE_INLINE static Vec scaled_weights(Vec weights, const float* pair) {
    const Mask seen = _mm512_cmp_ps_mask(weights, zero(), _CMP_NEQ_UQ);
    return _mm512_maskz_mul_ps(seen, weights, scales_of(pair));
  }

  void attend_span(int64_t span) {
    if constexpr (kScaled<T>) load_scales();
    Sight sights[kGroups];
    bool sees[kGroups];
    int32_t least = kSpan, most = 0;
    for (int64_t group = 0; group < groups_; ++group) {
      sees[group] = look(span, group, sights[group]);
      if (!sees[group]) continue;
      least = static_cast<int32_t>(min_of(least, sights[group].least));
      most = static_cast<int32_t>(max_of(most, sights[group].most));
    }
    for (int64_t column = 0; column < plan_.head_dim; column += kStagedColumns) {
      bool staged = false;  // whether the previous step staged this step's keys
      for (int64_t key = least / kKeys * kKeys; key < most; key += kKeys) {
        if (!staged) stage_keys(key, column);
        staged = false;
        for (int64_t group = 0; group < groups_; ++group) {
          if (!sees[group] || key >= sights[group].most || key + kKeys <= sights[group].least) continue;
          staged = multiply_keys(group, key, column, staged ? 0 : most) || staged;
        }
      }
    }
    bool asked = false;
    for (int64_t group = 0; group < groups_; ++group) {
      if (!sees[group]) continue;
      soften(span, group, sights[group]);
      mix_group(group, sights[group], asked ? nullptr : &next_runs_);
      asked = true;
    }
  }

  // Returns one of two buffers, used in turns, for the kKeys keys staged at a time.
  Bf16* stage_of(int64_t key) const { return keys_ + key / kKeys % 2 * kKeys * kKeyStride; }

  SLUICE_INLINE static void stage_whole(Bf16* to, const T* row) {
    _mm512_storeu_si512(to, load_bf16(row));
    _mm512_storeu_si512(to + 32, load_bf16(row + 32));
  }

  // Stages kStagedColumns columns of kKeys keys, with zeros after the last column. Keys that no row sees are zeros or
  // what the cache holds.
  void stage_keys(int64_t key, int64_t column) {
    const int64_t dim = plan_.head_dim, count = dim - column;
    Bf16* to = stage_of(key);
    for (int64_t i = 0; i < kKeys; ++i, to += kKeyStride) {
      const T* run = span_runs_.keys[(key + i) / kRun];
      const T* row = run + i % kRun * dim + column;
      if (run != nullptr && count >= kStagedColumns) {
        stage_whole(to, row);
        continue;
      }
      const __m512i zero = _mm512_setzero_si512();
      _mm512_storeu_si512(to, run != nullptr ? load_bf16(row, count) : zero);
      _mm512_storeu_si512(to + 32, run != nullptr && count > 32 ? load_bf16(row + 32, count - 32) : zero);
    }
  }

  // Computes the scores of staged keys. If kKeys more keys follow below `most`, it stages them meanwhile, prefetches
  // those of the next span, and returns true.
  bool multiply_keys(int64_t group, int64_t key, int64_t column, int64_t most) {
    const PairScores product{.queries = queries_ + group * query_floats(plan_) + column / 4 * kLanes,
                             .keys = stage_of(key),
                             .scores = scores_ + (group * kSpan + key) * kLanes,
                             .quads = (min_of(plan_.head_dim - column, kStagedColumns) + 3) / 4,
                             .first = column == 0};
    static_assert(kKeys == 2 * kRun && kKeys == kStagedColumns / 4);
    const int64_t dim = plan_.head_dim, run = key / kRun;
    const T* const* own = span_runs_.keys + run;
    const bool whole = product.quads == kKeys && own[0] != nullptr && own[1] != nullptr;
    if (most == 0 || !whole) {
      multiply_pairs(product, [](int64_t) {});
      return false;
    }
    // When no keys follow, the same keys are staged and prefetched again, without effect.
    const bool follow = key + kKeys < most && own[2] != nullptr && own[3] != nullptr;
    const T* const* from = follow ? own + 2 : own;
    const T* const* next = next_runs_.keys[run + 1] != nullptr && next_runs_.keys[run] ? next_runs_.keys + run : own;
    const T *low = from[0] + column, *high = from[1] + column - kRun * dim;
    const T *ask_low = next[0] + column, *ask_high = next[1] + column - kRun * dim;
    Bf16* to = stage_of(key + kKeys);
    multiply_pairs(product, [&](int64_t i) SLUICE_INLINE_LAMBDA {
      prefetch<kStagedColumns>((i < kRun ? ask_low : ask_high) + i * dim);
      stage_whole(to + i * kKeyStride, (i < kRun ? low : high) + i * dim);
    });
    return follow;
  }

  // Returns the dot products of a pair of keys: the sum of their halves.
  SLUICE_INLINE static Vec products_of(const float* raw) {
    const Vec even = load(raw, All{}), odd = load(raw + kLanes, All{});
    return _mm512_shuffle_ps(even, odd, 0x88) + _mm512_shuffle_ps(even, odd, 0xdd);
  }
  static constexpr float kLog2E = 1.44269504f;
  bool scaled_only() const {
    return args_.soft_cap == 0.0f && args_.alibi_slopes == nullptr && args_.relative_bias == nullptr;
  }
  // Returns the scores of the pair of keys at `first`, in units of ln 2, when they need more than scaling.
  Vec scores_of(Vec products, int64_t first, int64_t group) const {
    Vec x = products * broadcast(args_.scale);
    if (args_.soft_cap > 0.0f) x = broadcast(args_.soft_cap) * tanh(x / broadcast(args_.soft_cap));
    alignas(64) float bias[kLanes] = {};
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = group * kGroupRows + row_of_lane(lane), head = task_.first_head + row % task_.heads;
      const int64_t distance = first + kLaneKeys.odd[lane] - position_of(row), reach = args_.relative_reach;
      if (row >= task_.rows()) continue;
      if (args_.alibi_slopes != nullptr) bias[lane] = args_.alibi_slopes[head] * static_cast<float>(distance);
      if (args_.relative_bias == nullptr) continue;
      bias[lane] += args_.relative_bias[head * (2 * reach + 1) + reach + max_of(-reach, min_of(reach, distance))];
    }
    return (x + load(bias, All{})) * broadcast(kLog2E);
  }

  // Turns scores into weights[pair][row], as pairs of bf16. Updates maxima, sums and corrections.
  void soften(int64_t span, int64_t group, const Sight& sight) {
    // In pairs of keys; a step handles two pairs.
    const int64_t first = sight.least / 4 * 2, last = round_up(sight.most, 4) / 2;
    const bool scaled = scaled_only();
    const Vec scale = broadcast(args_.scale * kLog2E);
    const float* raw = scores_ + group * kSpan * kLanes;
    float *softened = softened_, *weights = weights_;
    Vec top = broadcast(kMinusInfinity);
    for (int64_t pair = first; pair < last; ++pair) {
      Vec x = products_of(raw + 2 * pair * kLanes);
      if constexpr (kScaled<T>) x = x * scales_of(key_scales_ + 2 * pair);
      x = scaled ? x * scale : scores_of(x, span + 2 * pair, group);
      if (2 * pair < sight.all_low || 2 * pair >= sight.all_high) {
        const __m512i key =
            _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(2 * pair)), _mm512_load_si512(kLaneKeys.odd));
        const Mask visible = operator_and(_mm512_cmpge_epi32_mask(key, _mm512_load_si512(sight.low)),
                                          _mm512_cmplt_epi32_mask(key, _mm512_load_si512(sight.high)));
        x = select(visible, x, broadcast(kMinusInfinity));
      }
      top = max(x, top);
      store(softened + pair * kLanes, x, All{});
    }
    const Vec before = load(tops_ + group * kLanes, All{}), after = max(max(top, swap_keys(top)), before);
    const Vec base = max(after, broadcast(-3e38f));  // finite where a row has not seen any key yet
    const Vec correction = exp2(before - base);
    Vec sum = load(sums_ + group * kLanes, All{}) * correction;
    const __m512i neighbours =
        _mm512_set_epi64(0x0f0e0b0a0d0c0908, 0x0706030205040100, 0x0f0e0b0a0d0c0908, 0x0706030205040100,
                         0x0f0e0b0a0d0c0908, 0x0706030205040100, 0x0f0e0b0a0d0c0908, 0x0706030205040100);
    for (int64_t pair = first; pair < last; pair += 2) {
      Vec a = exp2(load(softened + pair * kLanes, All{}) - base);
      Vec b = exp2(load(softened + (pair + 1) * kLanes, All{}) - base);
      sum = sum + a;
      sum = sum + b;
      if constexpr (kScaled<T>) {
        a = scaled_weights(a, value_scales_ + 2 * pair), b = scaled_weights(b, value_scales_ + 2 * pair + 2);
      }
      const __m512i narrow = _mm512_castps_si512(narrow_pairs(a, b));
      _mm512_storeu_si512(weights + pair * kGroupRows, _mm512_shuffle_epi8(narrow, neighbours));
    }
    store(tops_ + group * kLanes, after, All{});
    store(sums_ + group * kLanes, sum, All{});
    store(correction_ + group * kLanes, correction, All{});
  }

  // mixed[rows] = mixed * correction (if not null) + weights * values of the keys [first, last).
  struct Mix {
    int64_t group, row;  // `row` counts within the group
    int64_t first, last;
    const float* correction;
  };
  template <int R, class Next>
  void mix_columns(const Mix& m, int64_t column, [[maybe_unused]] const Next& next) {
    float* mixed = mixed_ + (m.group * kGroupRows + m.row) * mixed_stride(plan_) + column;
    Vec acc[R][2];
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec by =
          m.correction != nullptr ? broadcast(m.correction[lane_of_row(static_cast<int>(m.row) + r)]) : broadcast(1.0f);
      acc[r][0] = load(mixed + r * mixed_stride(plan_), All{}) * by;
      acc[r][1] = load(mixed + r * mixed_stride(plan_) + kLanes, All{}) * by;
    }
    const int64_t stride = values_of(args_).shape[3], count = plan_.value_dim - column;
    const float* weights = weights_ + m.row;
    const auto add = [&](int64_t pair, const T* row, auto hide) SLUICE_INLINE_LAMBDA {
      __m512i even = load_bf16(row, count), odd = load_bf16(row + stride, count);
      hide(even, odd);
      const Vec low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(even, odd));
      const Vec high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(even, odd));
      SLUICE_UNROLL
      for (int r = 0; r < R; ++r) {
        const Vec weight = broadcast(weights[pair * kGroupRows + r]);
        acc[r][0] = dot_pairs(acc[r][0], weight, low);
        acc[r][1] = dot_pairs(acc[r][1], weight, high);
      }
    };
    const auto row_of = [&](int64_t key) { return span_runs_.values[key / kRun] + key % kRun * stride + column; };
    // When rows see only one key of a pair, the other key must not affect them: it is replaced by zeros.
    if (m.first % 2 != 0 && m.first < m.last) {
      add(m.first / 2, row_of(m.first - 1), [](__m512i& even, __m512i&) { even = _mm512_setzero_si512(); });
    }
    const int64_t last = m.last / 2 * 2;
    for (int64_t key = round_up(m.first, 2); key < last;) {
      const T* row = row_of(key);
      [[maybe_unused]] const T* asked = row;  // prefetch address; without a next span, memory that is already cached
      if constexpr (std::is_same_v<Next, Runs>) {
        if (next.values[key / kRun] != nullptr) asked = next.values[key / kRun] + key % kRun * stride + column;
      }
      for (const int64_t end = min_of(last, (key / kRun + 1) * kRun); key < end; key += 2, row += 2 * stride) {
        if constexpr (std::is_same_v<Next, Runs>) {
          prefetch<kMixedColumns>(asked);
          prefetch<kMixedColumns>(asked + stride);
          asked += 2 * stride;
        }
        add(key / 2, row, [](__m512i&, __m512i&) {});
      }
    }
    if (m.last % 2 != 0 && m.first < m.last) {
      add(m.last / 2, row_of(m.last - 1), [](__m512i&, __m512i& odd) { odd = _mm512_setzero_si512(); });
    }
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      store(mixed + r * mixed_stride(plan_), acc[r][0], All{});
      store(mixed + r * mixed_stride(plan_) + kLanes, acc[r][1], All{});
    }
  }

  template <class Next>
  void mix(const Mix& m, int64_t rows, const Next& next) {
    for (int64_t column = 0; column < plan_.value_dim; column += kMixedColumns) {
      each_rows<kGroupRows>(rows, [&]<int R>(int64_t row) {
        Mix part = m;
        part.row += row;
        if (row == 0) return mix_columns<R>(part, column, next);
        mix_columns<R>(part, column, nullptr);
      });
    }
  }

  // Mixes all rows together when they see the same keys. Otherwise, keys that not all rows see are mixed row by row.
  void mix_group(int64_t group, const Sight& sight, const Runs* next) {
    const int64_t rows = rows_of(group);
    const float* correction = correction_ + group * kLanes;
    bool alike = true;
    for (int64_t r = 1; r < rows; ++r) {
      alike = alike && sight.row_low[r] == sight.row_low[0] && sight.row_high[r] == sight.row_high[0];
    }
    Mix together{group, 0, sight.all_low, sight.all_high, nullptr};
    if (alike) together = {group, 0, sight.row_low[0], sight.row_high[0], correction};
    for (int64_t r = 0; r < rows && !alike; ++r) {
      mix({group, r, sight.row_low[r], min_of(sight.row_high[r], sight.all_low), correction}, 1, nullptr);
    }
    if (next != nullptr) {
      mix(together, rows, *next);
    } else {
      mix(together, rows, nullptr);
    }
    for (int64_t r = 0; r < rows && !alike; ++r) {
      mix({group, r, max_of(sight.row_low[r], sight.all_high), sight.row_high[r], nullptr}, 1, nullptr);
    }
  }

  // Writes the split's results with the columns in their original order.
  void write(const State& state) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t row = 0; row < task_.rows(); ++row) {
      const int64_t at = row / kGroupRows * kLanes + lane_of_row(static_cast<int>(row % kGroupRows));
      constexpr float kLn2 = 0.693147181f;
      state.top[row] = tops_[at] * kLn2;
      store(state.sums + row * kLanes, zero(), All{});
      state.sums[row * kLanes] = sums_[at] + sums_[at + 2];
      float* to = state.mixed + row * plan_.value_stride;
      for (int64_t column = 0; column < plan_.value_dim; column += kMixedColumns) {
        const float* mixed = mixed_ + row * mixed_stride(plan_) + column;
        const Vec low = load(mixed, All{}), high = load(mixed + kLanes, All{});
        store(to + column, _mm512_permutex2var_ps(low, first, high), All{});
        if (column + kLanes >= plan_.value_stride) break;
        store(to + column + kLanes, _mm512_permutex2var_ps(low, second, high), All{});
      }
    }
  }

  const ops::AttentionArgs& args_;
  const Plan& plan_;
  const Task& task_;
  int64_t groups_;
  Runs span_runs_{}, next_runs_{};
  float* queries_;     // [kGroups][head_dim / 4][kLanes]
  float* scores_;      // [kGroups][kSpan][kLanes]
  float* tops_;        // [kGroups][kLanes], in units of ln 2
  float* sums_;        // [kGroups][kLanes]
  float* correction_;  // [kGroups][kLanes]: factors for the sums of earlier spans
  float* softened_;    // [kSpan / 2][kLanes]: scores of one group
  float* weights_;     // [kSpan / 2][kGroupRows]: weights of one group as pairs of bf16
  float* mixed_;       // [kMaxRows][mixed_stride], permuted within each 32 columns
  float* key_scales_;  // [kSpan], if the cache has scales
  float* value_scales_;
  Bf16* keys_;  // [2][kKeys][kKeyStride]
};

}  // namespace
}  // namespace sluice::SLUICE_ISA
#endif
