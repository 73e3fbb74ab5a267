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
#endif

// sums + a * b, of fp32 or of pairs.
template <bool paired>
SLUICE_INLINE Vec multiply_add(Vec sums, Vec a, Vec b) {
#ifdef __AVX512BF16__
  if constexpr (paired) return dot_pairs(sums, a, b);
#else
  static_assert(!paired);
#endif
  return fma(a, b, sums);
}

// Calls of a function that does nothing but ask for memory are dropped, unless it is inlined before GCC looks for such.
#define SLUICE_INLINE_LAMBDA __attribute__((always_inline))

// acc[R][V vectors] += a[R][first .. last) * b[first .. last)[V vectors]; ask(i) before every step.
struct Factors {
  const float* a;  // [R][a_stride]
  const float* b;  // [steps][b_stride]
  int64_t a_stride, b_stride, first, last;
};
template <bool paired, int R, int V, class Ask>
SLUICE_INLINE void accumulate(Vec (&acc)[R][V], const Factors& f, Ask&& ask) {
  for (int64_t i = f.first; i < f.last; ++i) {
    ask(i);
    Vec b[V];
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) b[v] = load(f.b + i * f.b_stride + v * kLanes, All{});
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec a = broadcast(f.a[r * f.a_stride + i]);
      SLUICE_UNROLL
      for (int v = 0; v < V; ++v) acc[r][v] = multiply_add<paired>(acc[r][v], a, b[v]);
    }
  }
}
template <int R, int V>
SLUICE_INLINE void store_rows(float* to, int64_t stride, const Vec (&acc)[R][V]) {
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) store(to + r * stride + v * kLanes, acc[r][v], All{});
  }
}

// scores[R][kTile] = queries[R][head_dim] * keys[head_dim][kTile]; asks for `ahead` unless it is null at compile time.
// Paired, queries and keys are pairs of neighbours in head_dim.
struct KeyProduct {
  const float* queries;  // [R][stride]
  const float* keys;     // [head_dim][kTile]
  float* scores;         // [R][kTile]
  int64_t head_dim, stride;
};
template <bool paired, int R, class Pointers>
void multiply_keys(const KeyProduct& p, [[maybe_unused]] Pointers ahead) {
  constexpr int kVecs = kTile / kLanes, kPair = paired ? 2 : 1;
  Vec acc[R][kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  const Factors factors{p.queries, p.keys, p.stride, kTile, 0, (p.head_dim + kPair - 1) / kPair};
  accumulate<paired>(acc, factors, [&]([[maybe_unused]] int64_t i) SLUICE_INLINE_LAMBDA {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) {  // head_dim steps cover head_dim elements of kTile keys
      for (int64_t d = kPair * i; d < min_of(kPair * i + kPair, p.head_dim); ++d) {
        prefetch<kTile>(ahead[d % kTile] + d / kTile * kTile);
      }
    }
  });
  store_rows(p.scores, kTile, acc);
}

// mixed[R][V vectors] = mixed * correction + weights[R][keys first .. last) * values[keys][V vectors], asking likewise.
// Paired, weights and values are pairs of neighbouring keys.
struct ValueProduct {
  float* mixed;             // [R][stride]
  const float* correction;  // [R]
  const float* weights;     // [R][kTile]
  const float* values;      // [kTile][stride]
  int64_t first, last, stride;
  int64_t column;  // of the values' first in a row of the cache
};
template <bool paired, int R, int V, class Pointers>
void multiply_values(const ValueProduct& p, [[maybe_unused]] Pointers ahead) {
  constexpr int kPair = paired ? 2 : 1;
  Vec acc[R][V];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    const Vec by = broadcast(p.correction[r]);
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) acc[r][v] = load(p.mixed + r * p.stride + v * kLanes, All{}) * by;
  }
  const Factors factors{p.weights, p.values, kTile / kPair, p.stride, p.first / kPair, p.last / kPair};
  accumulate<paired>(acc, factors, [&]([[maybe_unused]] int64_t i) SLUICE_INLINE_LAMBDA {
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) {
      SLUICE_UNROLL
      for (int key = 0; key < kPair; ++key) prefetch<V * kLanes>(ahead[kPair * i + key] + p.column);
    }
  });
  store_rows(p.mixed, p.stride, acc);
}

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
