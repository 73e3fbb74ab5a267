// Attention in fp32, for every cache type and every instruction set. Keys are processed in tiles of kTile at absolute
// positions. K is widened and transposed, scores = Q K^T, then online softmax, then O = O * correction + P V. Included
// by attention.cc only.
#pragma once

#include "kernels/cpu/attention_plan.h"

namespace sluice::SLUICE_ISA {
namespace {

// values[key][stride] = rows[key] as fp32, in whole vectors. Null rows leave their values unchanged.
template <class T>
void load_values(const T* const (&rows)[kTile], int64_t value_dim, int64_t stride, float* values) {
  for (int64_t i = 0; i < kTile; ++i) {
    if (rows[i] == nullptr) continue;
    each_vec(value_dim, [&](int64_t d, auto n) { store(values + i * stride + d, load(rows[i] + d, n), All{}); });
  }
}

// The blocks of the cache are scattered, so hardware prefetchers do not recognize them. Prefetching a whole tile at
// once overruns the miss buffers. Therefore both matmuls prefetch a few cache lines of the next tile with every step.
template <class T>
struct Ahead {
  const T* keys[kTile];
  const T* values[kTile];
};

// mixed[R][V vectors] = mixed * correction + weights[R][keys first .. last) * values[keys][V vectors]. Prefetches too.
struct ValueProduct {
  float* mixed;             // [R][stride]
  const float* correction;  // [R]
  const float* weights;     // [R][kTile]
  const float* values;      // [kTile][stride]
  int64_t first, last, stride;
  int64_t column;  // index of the first value column in a row of the cache
};
template <int R, int V, class Pointers>
void multiply_values(const ValueProduct& p, [[maybe_unused]] Pointers ahead) {
  Vec acc[R][V];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    const Vec by = broadcast(p.correction[r]);
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) acc[r][v] = load(p.mixed + r * p.stride + v * kLanes, All{}) * by;
  }
  const Factors factors{p.weights, p.values, kTile, p.stride, p.first, p.last};
  accumulate(acc, factors, [&]([[maybe_unused]] int64_t i) SLUICE_INLINE_LAMBDA {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) prefetch<V * kLanes>(ahead[i] + p.column);
  });
  store_rows(p.mixed, p.stride, acc);
}

// Returns the biases of one head for the keys at consecutive distances from `distance` on.
Vec relative_bias(const ops::AttentionArgs& args, int64_t head, int64_t distance) {
  const int64_t reach = args.relative_reach;
  const float* bias = args.relative_bias + head * (2 * reach + 1) + reach;
  if (distance >= -reach && distance + kLanes - 1 <= reach) return load(bias + distance, All{});
  float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) values[i] = bias[max_of(-reach, min_of(reach, distance + i))];
  return load(values, All{});
}

// The rows of one task, over a cache with elements of type T.
template <class T>
class Fp32Tiles {
 public:
  static int64_t floats(const Plan& plan) {
    return kMaxRows * (plan.key_stride + kTile + 1) + kTile * (plan.key_stride + plan.value_stride + 2);
  }

  // `memory` has floats(plan) floats. Nothing is rounded.
  Fp32Tiles(const ops::AttentionArgs& args, const Plan& plan, const Task& task, float* memory)
      : args_(args), plan_(plan), task_(task) {
    queries_ = memory;
    keys_ = queries_ + kMaxRows * plan.key_stride;
    values_ = keys_ + kTile * plan.key_stride;
    scores_ = values_ + kTile * plan.value_stride;
    key_scales_ = scores_ + kMaxRows * kTile;
    value_scales_ = key_scales_ + kTile;
    correction_ = value_scales_ + kTile;
    for (int64_t row = 0; row < task.rows(); ++row) {
      const float* q = query_of(args, plan, task, row);
      each_vec(plan.head_dim,
               [&](int64_t d, auto n) { store(queries_ + row * plan.key_stride + d, load(q + d, n), n); });
    }
  }

  void attend_split(int64_t split, const State& state) {
    state_ = state;
    state_.clear(task_.rows(), plan_);
    const int64_t first = max_of(split * kSplit, first_key(args_, task_.first_position) / kTile * kTile);
    const int64_t last = min_of((split + 1) * kSplit - 1, last_key(args_, task_));
    for (int64_t tile = first; tile <= last; tile += kTile) attend_tile(tile);
  }

 private:
  // Finds the vectors of the kTile keys from `tile` on. Keys outside [first, last] need not be in the cache; their
  // address is null.
  void locate(const Tensor& cache, int64_t tile, int64_t first, int64_t last, const T* (&rows)[kTile]) const {
    const int64_t block_size = cache.shape[2];
    const int64_t begin = max_of(first - tile, 0), end = min_of(last - tile + 1, kTile);
    for (int64_t i = 0; i < begin; ++i) rows[i] = nullptr;
    for (int64_t i = begin; i < end;) {
      const T* row = cached<T>(args_, cache, task_, tile + i);
      for (const int64_t stop = min_of(end, i + block_size - (tile + i) % block_size); i < stop; ++i) {
        rows[i] = row;
        row += cache.shape[3];
      }
    }
    for (int64_t i = max_of(end, 0); i < kTile; ++i) rows[i] = nullptr;
  }

  // Finds the scales of the same vectors. Keys outside the range get 0.
  void find_scales(const ops::CacheTensor& cache, int64_t tile, int64_t first, int64_t last, float* scales) const {
    for (int64_t i = 0; i < kTile; ++i) {
      const bool inside = tile + i >= first && tile + i <= last;
      scales[i] = inside ? cache.scales[vector_of(args_, cache, task_, tile + i)] : 0.0f;
    }
  }

  // Finds the vectors of the tile at `tile`. Keys that the task does not need point at memory that is already in the
  // CPU cache.
  void look_ahead(int64_t tile, Ahead<T>& ahead) const {
    locate(args_.k_cache, tile, tile, last_key(args_, task_), ahead.keys);
    locate(values_of(args_), tile, tile, last_key(args_, task_), ahead.values);
    for (int64_t i = 0; i < kTile; ++i) {
      if (ahead.keys[i] != nullptr) continue;
      ahead.keys[i] = ahead.values[i] = reinterpret_cast<const T*>(scores_);
    }
  }

  // Turns one row's scores for the keys [first, last) of a tile into exponentials, and updates the row's maximum and
  // sums. `distance` is the position of the tile's first key relative to the row.
  void soften(int64_t row, int64_t distance, int64_t first, int64_t last) {
    constexpr int kVecs = kTile / kLanes;
    const int64_t head = task_.first_head + row % task_.heads;
    float* scores = scores_ + row * kTile;
    Vec x[kVecs];
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      x[v] = load(scores + v * kLanes, All{}) * broadcast(args_.scale);
      if constexpr (kScaled<T>) x[v] = x[v] * load(key_scales_ + v * kLanes, All{});
      if (args_.soft_cap > 0.0f) x[v] = broadcast(args_.soft_cap) * tanh(x[v] / broadcast(args_.soft_cap));
      if (args_.alibi_slopes != nullptr) {
        const Vec away = lane_numbers() + broadcast(static_cast<float>(v * kLanes + distance));
        x[v] = fma(broadcast(args_.alibi_slopes[head]), away, x[v]);
      }
      if (args_.relative_bias != nullptr) x[v] = x[v] + relative_bias(args_, head, distance + v * kLanes);
    }
    if (first > 0 || last < kTile) {
      SLUICE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const Vec lane = lane_numbers() + broadcast(static_cast<float>(v * kLanes));
        const Mask visible = operator_and(less(lane, broadcast(static_cast<float>(last))),
                                          less(broadcast(static_cast<float>(first) - 0.5f), lane));
        x[v] = select(visible, x[v], broadcast(kMinusInfinity));
      }
    }
    Vec top = x[0];
    SLUICE_UNROLL
    for (int v = 1; v < kVecs; ++v) top = max(x[v], top);
    const float before = state_.top[row], highest = reduce_max(top), after = highest > before ? highest : before;
    const float correction = after == before ? 1.0f : first_lane(exp(broadcast(before - after)));
    Vec sum = load(state_.sums + row * kLanes, All{}) * broadcast(correction);
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      x[v] = exp(x[v] - broadcast(after));
      sum = sum + x[v];
      if constexpr (kScaled<T>) x[v] = x[v] * load(value_scales_ + v * kLanes, All{});
      store(scores + v * kLanes, x[v], All{});
    }
    store(state_.sums + row * kLanes, sum, All{});
    correction_[row] = correction;
    state_.top[row] = after;
  }

  // Adds the keys [first, last) to the rows' weighted sums of values.
  void mix_values(int64_t row, int64_t rows, int64_t first, int64_t last, const Ahead<T>& ahead) {
    constexpr int kVecs = kRegisters == 32 ? 4 : 2, kRows = 4;  // sixteen or eight accumulators
    each_rows<kRows>(rows, [&]<int R>(int64_t r) {
      const auto columns = [&]<int V>(int64_t d) {
        const auto run = [&](auto next) {
          multiply_values<R, V>({.mixed = state_.mixed + (row + r) * plan_.value_stride + d,
                                 .correction = correction_ + row + r,
                                 .weights = scores_ + (row + r) * kTile,
                                 .values = values_ + d,
                                 .first = first,
                                 .last = last,
                                 .stride = plan_.value_stride,
                                 .column = d},
                                next);
        };
        if (r == 0) return run(ahead.values);
        run(nullptr);
      };
      int64_t d = 0;
      for (; d + kVecs * kLanes <= plan_.value_stride; d += kVecs * kLanes) columns.template operator()<kVecs>(d);
      for (; d < plan_.value_stride; d += kLanes) columns.template operator()<1>(d);
    });
  }

  // Returns load(rows). Uses a type that is faster to widen when there is one and no row has a NaN.
  template <class Load>
  static void load_finite(const T* const (&rows)[kTile], [[maybe_unused]] int64_t dim, Load&& load) {
    if constexpr (std::is_same_v<Finite<T>, T>) {
      load(rows);
    } else {
      const Finite<T>* finite[kTile];
      bool nan = false;
      for (int64_t i = 0; i < kTile; ++i) {
        finite[i] = reinterpret_cast<const Finite<T>*>(rows[i]);
        if (rows[i] != nullptr) nan |= has_nan(rows[i], dim);
      }
      nan ? load(rows) : load(finite);
    }
  }

  // Adds the tile of keys at `tile` to the split's state.
  void attend_tile(int64_t tile) {
    const int64_t end = min_of(tile + kTile - 1, last_key(args_, task_));
    // Positions before `behind` cannot see any key of the tile, because of the causal mask or the window.
    const int64_t tile_begins = position_of_key(args_.share, tile);
    const int64_t tile_ends = position_of_key(args_.share, tile + kTile - 1);
    const int64_t behind = args_.causal ? tile_begins : args_.window > 0 ? tile_begins - args_.window + 1 : 0;
    const int64_t from = max_of(task_.first_position, behind);
    int64_t to = task_.last_position();
    if (args_.window > 0) to = min_of(to, tile_ends + args_.window - 1);
    if (args_.chunk > 0) to = min_of(to, (tile_ends / args_.chunk + 1) * args_.chunk - 1);
    if (from > to) return;
    const int64_t first = (from - task_.first_position) * task_.heads;
    const int64_t last = (to + 1 - task_.first_position) * task_.heads;

    Ahead<T> ahead;
    look_ahead(tile + kTile, ahead);
    const T* vectors[kTile];
    const int64_t seen = first_key(args_, from);
    locate(args_.k_cache, tile, seen, end, vectors);
    load_finite(vectors, plan_.head_dim, [&](const auto& rows) { load_keys(rows, plan_.head_dim, keys_); });
    if constexpr (kScaled<T>) {
      find_scales(args_.k_cache, tile, seen, end, key_scales_);
      find_scales(values_of(args_), tile, seen, end, value_scales_);
    }
    each_rows<kRegisters == 32 ? 8 : 2>(last - first, [&]<int R>(int64_t r) {
      const auto run = [&](auto next) {
        multiply_keys<R>({.queries = queries_ + (first + r) * plan_.key_stride,
                          .keys = keys_,
                          .scores = scores_ + (first + r) * kTile,
                          .head_dim = plan_.head_dim,
                          .stride = plan_.key_stride},
                         next);
      };
      if (r == 0) return run(ahead.keys);
      run(nullptr);
    });

    if (args_.v_cache.data != nullptr) locate(args_.v_cache, tile, seen, end, vectors);
    load_finite(vectors, plan_.value_dim,
                [&](const auto& rows) { load_values(rows, plan_.value_dim, plan_.value_stride, values_); });
    int64_t whole = -1;  // first of the pending rows that see all keys of the tile
    for (int64_t position = from; position <= to; ++position) {
      const int64_t row = (position - task_.first_position) * task_.heads;
      const int64_t low = max_of(first_key(args_, position) - tile, 0);
      const int64_t high = min_of(last_key(args_, task_, position) - tile + 1, kTile);
      for (int64_t h = 0; h < task_.heads && low < high; ++h) soften(row + h, tile - position, low, high);
      const bool all = low == 0 && high == kTile;
      if (all && whole < 0) whole = row;
      if (all && position < to) continue;
      if (whole >= 0) mix_values(whole, (all ? row + task_.heads : row) - whole, 0, kTile, ahead);
      whole = -1;
      if (!all && low < high) mix_values(row, task_.heads, low, high, ahead);
    }
  }

  const ops::AttentionArgs& args_;
  const Plan& plan_;
  const Task& task_;
  State state_{};
  float* queries_;     // [kMaxRows][key_stride]
  float* keys_;        // [key_stride][kTile], transposed
  float* values_;      // [kTile][value_stride]
  float* scores_;      // [kMaxRows][kTile]: scores, later their exponentials times the scales of the values
  float* key_scales_;  // [kTile], if the cache has scales
  float* value_scales_;
  float* correction_;  // [kMaxRows]: factors for the sums of earlier tiles
};

}  // namespace
}  // namespace sluice::SLUICE_ISA
