// Rotary position embedding, and where the vector of a head lies in a paged cache.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"

namespace sluice::cuda {

struct Rotation {
  const float* cos_sin = nullptr;  // null: vectors are not rotated
  int64_t stride = 0;
  int rotary = 0;
  bool interleaved = false;
};

// Element i of `from` after the rotation with the cosines and sines in `table`.
template <class Q>
__device__ inline float rotated(const Rotation& r, const float* table, const Q* from, int i) {
  if (i >= r.rotary) return to_f32(from[i]);
  const int half = r.rotary / 2;
  const int pair = r.interleaved ? i / 2 : i % half;
  const bool second = r.interleaved ? i % 2 == 1 : i >= half;
  const float x = to_f32(from[r.interleaved ? 2 * pair : pair]);
  const float y = to_f32(from[r.interleaved ? 2 * pair + 1 : pair + half]);
  const float c = table[pair], s = table[half + pair];
  return second ? y * c + x * s : x * c - y * s;
}

// Rotates pair `pair` of `head` in place.
template <class Q>
__device__ inline void rotate_pair(const Rotation& r, const float* table, Q* head, int pair) {
  const int half = r.rotary / 2;
  Q& a = head[r.interleaved ? 2 * pair : pair];
  Q& b = head[r.interleaved ? 2 * pair + 1 : pair + half];
  const float x = to_f32(a), y = to_f32(b), c = table[pair], s = table[half + pair];
  a = from_f32<Q>(x * c - y * s);
  b = from_f32<Q>(y * c + x * s);
}

// The vector of one kv head at `slot` in a cache [blocks, kv_heads, block_size, dim].
template <class T>
struct Cache {
  T* data;
  int64_t kv_heads, block_size, dim;
  float* scales = nullptr;  // for int8 caches, one per vector
  __device__ int64_t vector(int64_t slot, int64_t head) const {
    return (slot / block_size * kv_heads + head) * block_size + slot % block_size;
  }
  __device__ T* row(int64_t slot, int64_t head) const { return data + vector(slot, head) * dim; }
};

}  // namespace sluice::cuda
