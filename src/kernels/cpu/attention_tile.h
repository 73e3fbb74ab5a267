// One tile of attention: keys and values of kTile positions widened to fp32, and the two products with them, in
// registers. Included by attention.cc only.
#pragma once

#include <type_traits>

#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kTile = 32;  // keys whose K and V stay in the first cache

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Asks for the lines of `Count` elements.
template <int64_t Count, class T>
SLUICE_INLINE void prefetch(const T* p) {
  SLUICE_UNROLL
  for (int64_t at = 0; at < Count * int64_t{sizeof(T)}; at += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + at, 0, 2);
  }
}

// As many elements as a vector register has bytes for, unconverted; elements from `count` on read as zero.
template <class T>
SLUICE_INLINE Vec load_raw(const T* p, int64_t count) {
  constexpr int64_t kWhole = sizeof(Vec) / sizeof(T);
  if (count == kWhole) return load(reinterpret_cast<const float*>(p), All{});
  T padded[kWhole] = {};
  __builtin_memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
  return load(reinterpret_cast<const float*>(padded), All{});
}

// Stores what each 32-bit lane of `bits` holds: one fp32 per lane at `to`, or the low half there and the high half at
// `to + stride`.
template <class T>
SLUICE_INLINE void store_widened(float* to, int64_t stride, Vec bits) {
  if constexpr (sizeof(T) == sizeof(float)) {
    store(to, bits, All{});
  } else {
    store(to, widen_low(bits, T{}), All{});
    store(to + stride, widen_high(bits, T{}), All{});
  }
}

// keys[d][kTile] = rows[key][d] as fp32. 16-bit elements are transposed in pairs, then widened.
template <class T>
void load_keys(const T* const (&rows)[kTile], int64_t head_dim, float* keys) {
  constexpr int kPack = sizeof(float) / sizeof(T);
  for (int64_t key = 0; key < kTile; key += kLanes) {
    for (int64_t d = 0; d < head_dim; d += kPack * kLanes) {
      const int64_t count = min_of(head_dim - d, kPack * kLanes);
      Vec block[kLanes];
      SLUICE_UNROLL
      for (int i = 0; i < kLanes; ++i)
        block[i] = rows[key + i] != nullptr ? load_raw(rows[key + i] + d, count) : zero();
      transpose(block);
      float* to = keys + d * kTile + key;
      for (int64_t i = 0; i * kPack < count; ++i, to += kPack * kTile) store_widened<T>(to, kTile, block[i]);
    }
  }
}

// values[key][stride] = rows[key] as fp32, whole vectors; rows that are null are left as they were.
template <class T>
void load_values(const T* const (&rows)[kTile], int64_t value_dim, int64_t stride, float* values) {
  for (int64_t i = 0; i < kTile; ++i) {
    if (rows[i] == nullptr) continue;
    each_vec(value_dim, [&](int64_t d, auto n) { store(values + i * stride + d, load(rows[i] + d, n), All{}); });
  }
}

// Blocks of the cache are scattered, which hides them from the hardware's prefetchers, and asking for a whole tile at
// once overruns the miss buffers. So both products ask for a few lines of the tile to come with every step they
// compute.
template <class T>
struct Ahead {
  const T* keys[kTile];
  const T* values[kTile];
};

// scores[R][kTile] = queries[R][head_dim] * keys[head_dim][kTile]; asks for `ahead` unless it is null at compile time.
struct KeyProduct {
  const float* queries;  // [R][stride]
  const float* keys;     // [head_dim][kTile]
  float* scores;         // [R][kTile]
  int64_t head_dim, stride;
};
template <int R, class Pointers>
void multiply_keys(const KeyProduct& p, [[maybe_unused]] Pointers ahead) {
  constexpr int kVecs = kTile / kLanes;
  Vec acc[R][kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  for (int64_t d = 0; d < p.head_dim; ++d) {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) {  // head_dim steps cover head_dim elements of kTile keys
      const auto* line = ahead[d % kTile] + d / kTile * kTile;
      prefetch<kTile>(line);
    }
    Vec key[kVecs];
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) key[v] = load(p.keys + d * kTile + v * kLanes, All{});
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec q = broadcast(p.queries[r * p.stride + d]);
      SLUICE_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][v] = fma(q, key[v], acc[r][v]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) store(p.scores + r * kTile + v * kLanes, acc[r][v], All{});
  }
}

// mixed[R][V vectors] = mixed * correction + weights[R][keys first .. last) * values[keys][V vectors], asking likewise.
struct ValueProduct {
  float* mixed;             // [R][stride]
  const float* correction;  // [R]
  const float* weights;     // [R][kTile]
  const float* values;      // [kTile][stride]
  int64_t first, last, stride;
  int64_t column;  // of the values' first in a row of the cache
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
  for (int64_t key = p.first; key < p.last; ++key) {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) prefetch<V * kLanes>(ahead[key] + p.column);
    Vec value[V];
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) value[v] = load(p.values + key * p.stride + v * kLanes, All{});
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(p.weights[r * kTile + key]);
      SLUICE_UNROLL
      for (int v = 0; v < V; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) store(p.mixed + r * p.stride + v * kLanes, acc[r][v], All{});
  }
}

// Caches of bf16 whose products are dots of pairs where the processor has them: queries and softmax weights are rounded
// to bf16 as well, keys and values are not widened.
template <class T>
inline constexpr bool kPaired = false;
#ifdef __AVX512BF16__
template <>
inline constexpr bool kPaired<Bf16> = true;

// keys[d / 2][kTile] = the pair rows[key][d], rows[key][d + 1]; a missing last one is zero.
inline void load_key_pairs(const Bf16* const (&rows)[kTile], int64_t head_dim, float* keys) {
  for (int64_t key = 0; key < kTile; key += kLanes) {
    for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
      const int64_t count = min_of(head_dim - d, 2 * kLanes);
      Vec block[kLanes];
      SLUICE_UNROLL
      for (int i = 0; i < kLanes; ++i)
        block[i] = rows[key + i] != nullptr ? load_raw(rows[key + i] + d, count) : zero();
      transpose(block);
      for (int64_t i = 0; 2 * i < count; ++i) store(keys + (d / 2 + i) * kTile + key, block[i], All{});
    }
  }
}

// values[key / 2][d] = the pair rows[key][d], rows[key + 1][d]; rows that are null are zeros.
inline void load_value_pairs(const Bf16* const (&rows)[kTile], int64_t value_dim, int64_t stride, float* values) {
  for (int64_t key = 0; key < kTile; key += 2, values += stride) {
    for (int64_t d = 0; d < value_dim; d += 2 * kLanes) {
      const int64_t count = min_of(value_dim - d, 2 * kLanes);
      const Vec a = rows[key] != nullptr ? load_raw(rows[key] + d, count) : zero();
      const Vec b = rows[key + 1] != nullptr ? load_raw(rows[key + 1] + d, count) : zero();
      store(values + d, pair_first(a, b), All{});
      if (count > kLanes) store(values + d + kLanes, pair_second(a, b), All{});
    }
  }
}

// multiply_keys on pairs: `queries` are [R][stride] pairs, `keys` [head_dim / 2][kTile].
template <int R, class Pointers>
void multiply_key_pairs(const KeyProduct& p, [[maybe_unused]] Pointers ahead) {
  constexpr int kVecs = kTile / kLanes;
  Vec acc[R][kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  for (int64_t i = 0; 2 * i < p.head_dim; ++i) {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) {
      for (int64_t d = 2 * i; d < min_of(2 * i + 2, p.head_dim); ++d)
        prefetch<kTile>(ahead[d % kTile] + d / kTile * kTile);
    }
    Vec key[kVecs];
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) key[v] = load(p.keys + i * kTile + v * kLanes, All{});
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec q = broadcast(p.queries[r * p.stride + i]);
      SLUICE_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][v] = dot_pairs(acc[r][v], q, key[v]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) store(p.scores + r * kTile + v * kLanes, acc[r][v], All{});
  }
}

// multiply_values on pairs of all keys: `weights` are [R][kTile / 2] pairs, `values` [kTile / 2][stride].
template <int R, int V, class Pointers>
void multiply_value_pairs(const ValueProduct& p, [[maybe_unused]] Pointers ahead) {
  Vec acc[R][V];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    const Vec by = broadcast(p.correction[r]);
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) acc[r][v] = load(p.mixed + r * p.stride + v * kLanes, All{}) * by;
  }
  for (int64_t i = 0; i < kTile / 2; ++i) {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) {
      prefetch<V * kLanes>(ahead[2 * i] + p.column);
      prefetch<V * kLanes>(ahead[2 * i + 1] + p.column);
    }
    Vec value[V];
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) value[v] = load(p.values + i * p.stride + v * kLanes, All{});
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec weight = broadcast(p.weights[r * (kTile / 2) + i]);
      SLUICE_UNROLL
      for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], weight, value[v]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) store(p.mixed + r * p.stride + v * kLanes, acc[r][v], All{});
  }
}
#endif

// Calls body<R>(row) for tiles of at most Max rows of [0, rows).
template <int Max, class F>
SLUICE_INLINE void each_rows(int64_t rows, F&& body) {
  int64_t row = 0;
  for (; row + Max <= rows; row += Max) body.template operator()<Max>(row);
  if constexpr (Max > 1) {
    if (row < rows) each_rows<Max / 2>(rows - row, [&]<int R>(int64_t r) { body.template operator()<R>(row + r); });
  }
}

}  // namespace
}  // namespace sluice::SLUICE_ISA
