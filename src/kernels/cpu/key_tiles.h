// Tiles of cached keys in fp32 and their products with queries. Included by the files that score keys: attention and
// the selection of entries.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

template <class T>
inline constexpr bool kScaled = std::is_same_v<T, Int8>;

// Calls body<R>(row) for tiles of at most Max rows that cover [0, rows).
template <int Max, class F>
SLUICE_INLINE void each_rows(int64_t rows, F&& body) {
  int64_t row = 0;
  for (; row + Max <= rows; row += Max) body.template operator()<Max>(row);
  if constexpr (Max > 1) {
    if (row < rows) each_rows<Max / 2>(rows - row, [&]<int R>(int64_t r) { body.template operator()<R>(row + r); });
  }
}

// Prefetches the cache lines of `Count` elements.
template <int64_t Count, class T>
SLUICE_INLINE void prefetch(const T* p) {
  SLUICE_UNROLL
  for (int64_t at = 0; at < Count * int64_t{sizeof(T)}; at += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + at, 0, 2);
  }
}

// GCC drops calls of functions that only prefetch, unless they are inlined early.
#define SLUICE_INLINE_LAMBDA __attribute__((always_inline))

constexpr int64_t kTile = 32;  // keys per tile; their K and V stay in L1

// Number of elements that share a 32-bit lane during the transpose; they are widened afterwards (widen_part).
template <class T>
inline constexpr int kPack = sizeof(T) == 2    ? 2
                             : kWidensBytes<T> ? 4
                                               : 1;

// Loads kPack<T> * kLanes elements. Elements from `count` on read as zero.
template <class T>
SLUICE_INLINE Vec load_lanes(const T* p, int64_t count) {
  constexpr int64_t kWhole = kPack<T> * kLanes;
  if constexpr (kPack<T> == 1) {
    return count == kWhole ? load(p, All{}) : load(p, First{static_cast<int>(count)});
  } else {
    if (count == kWhole) return load(reinterpret_cast<const float*>(p), All{});
    T padded[kWhole] = {};
    __builtin_memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
    return load(reinterpret_cast<const float*>(padded), All{});
  }
}

// keys[d][kTile] = rows[key][d] as fp32.
template <class T>
void load_keys(const T* const (&rows)[kTile], int64_t head_dim, float* keys) {
  for (int64_t key = 0; key < kTile; key += kLanes) {
    for (int64_t d = 0; d < head_dim; d += kPack<T> * kLanes) {
      const int64_t count = min_of(head_dim - d, kPack<T> * kLanes);
      Vec block[kLanes];
      SLUICE_UNROLL
      for (int i = 0; i < kLanes; ++i)
        block[i] = rows[key + i] != nullptr ? load_lanes(rows[key + i] + d, count) : zero();
      transpose(block);
      float* to = keys + d * kTile + key;
      for (int64_t i = 0; i * kPack<T> < count; ++i, to += kPack<T> * kTile) {
        if constexpr (kPack<T> == 1) {
          store(to, block[i], All{});
        } else {
          store(to, widen_part<0>(block[i], T{}), All{});
          store(to + kTile, widen_part<1>(block[i], T{}), All{});
          if constexpr (kPack<T> == 4) {
            store(to + 2 * kTile, widen_part<2>(block[i], T{}), All{});
            store(to + 3 * kTile, widen_part<3>(block[i], T{}), All{});
          }
        }
      }
    }
  }
}

// How factors are multiplied: as fp32, or as pairs of bf16 in the place of an fp32 number.
struct Products {
  SLUICE_INLINE static Vec add(Vec sum, Vec a, Vec b) { return add_product(sum, a, b); }
};
#ifdef __AVX512BF16__
struct PairProducts {
  SLUICE_INLINE static Vec add(Vec sums, Vec a, Vec b) { return dot_pairs(sums, a, b); }
};

// keys[d / 2][kTile] = the elements d and d + 1 of rows[key], for every even d.
inline void load_key_pairs(const Bf16* const (&rows)[kTile], int64_t head_dim, float* keys) {
  for (int64_t key = 0; key < kTile; key += kLanes) {
    for (int64_t d = 0; d < head_dim; d += 2 * kLanes) {
      const int64_t count = min_of(head_dim - d, 2 * kLanes);
      Vec block[kLanes];
      SLUICE_UNROLL
      for (int i = 0; i < kLanes; ++i)
        block[i] = rows[key + i] != nullptr ? load_lanes(rows[key + i] + d, count) : zero();
      transpose(block);
      for (int64_t i = 0; 2 * i < count; ++i) store(keys + (d / 2 + i) * kTile + key, block[i], All{});
    }
  }
}
#endif

// acc[R][V vectors] += a[R][first .. last) * b[first .. last)[V vectors]. Calls ask(i) before every step.
struct Factors {
  const float* a;  // [R][a_stride]
  const float* b;  // [steps][b_stride]
  int64_t a_stride, b_stride, first, last;
};
template <class Product = Products, int R, int V, class Ask>
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
      for (int v = 0; v < V; ++v) acc[r][v] = Product::add(acc[r][v], a, b[v]);
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

// scores[R][kTile] = queries[R][head_dim] * keys[head_dim][kTile]. Prefetches `ahead` unless its type is nullptr_t.
struct KeyProduct {
  const float* queries;  // [R][stride]
  const float* keys;     // [head_dim][kTile]
  float* scores;         // [R][kTile]
  int64_t head_dim, stride;
};
template <int R, class Product = Products, class Pointers>
void multiply_keys(const KeyProduct& p, [[maybe_unused]] Pointers ahead) {
  constexpr int kVecs = kTile / kLanes;
  Vec acc[R][kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) acc[r][v] = zero();
  }
  const Factors factors{p.queries, p.keys, p.stride, kTile, 0, p.head_dim};
  accumulate<Product>(acc, factors, [&]([[maybe_unused]] int64_t d) SLUICE_INLINE_LAMBDA {
    // Over the loop, the head_dim steps prefetch head_dim elements of each of kTile keys.
    if constexpr (!std::is_same_v<Pointers, std::nullptr_t>) prefetch<kTile>(ahead[d % kTile] + d / kTile * kTile);
  });
  store_rows(p.scores, kTile, acc);
}

}  // namespace
}  // namespace sluice::SLUICE_ISA
