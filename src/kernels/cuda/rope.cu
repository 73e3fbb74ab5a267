// Rotation of queries and keys, and keys and values into the paged cache. Threads over the pairs and the plain elements
// of all heads of a token, in more blocks the fewer tokens there are; bound by memory traffic (q read and written once,
// k, v read and the cache written once).
#include <type_traits>

#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

Rotation rotation_of(const Tensor& cos_sin, bool interleaved) {
  if (cos_sin.data == nullptr) return {};
  return {cos_sin.f32(), cos_sin.row_stride, static_cast<int>(cos_sin.shape[1]), interleaved};
}

template <class T>
Cache<T> cache_of(const ops::CacheTensor& t) {
  return {t.as<T>(), t.shape[1], t.shape[2], t.shape[3], t.scales};
}

struct RowsOf {
  float* data;
  int64_t stride;
};

template <class T>
__global__ void rope_store_kernel(RowsOf q, int heads, RowsOf k, RowsOf v, Rotation rotation, Cache<T> k_cache,
                                  Cache<T> v_cache, const int32_t* positions, const int32_t* slots) {
  wait_for_earlier();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int step = static_cast<int>(gridDim.y * blockDim.x);
  const int head_dim = static_cast<int>(k_cache.dim), value_dim = static_cast<int>(v_cache.dim);
  const float* table = rotation.cos_sin != nullptr ? rotation.cos_sin + positions[token] * rotation.stride : nullptr;
  const int half = rotation.rotary / 2;
  for (int i = first; i < heads * half; i += step) {
    rotate_pair(rotation, table, q.data + token * q.stride + i / half * head_dim, i % half);
  }
  if (k.data == nullptr) return;
  const int64_t slot = slots[token];
  const int kv_heads = static_cast<int>(k_cache.kv_heads);
  for (int i = first; i < kv_heads * head_dim; i += step) {
    const int head = i / head_dim;
    const float* from = k.data + token * k.stride + head * head_dim;
    k_cache.row(slot, head)[i % head_dim] = from_f32<T>(rotated(rotation, table, from, i % head_dim));
  }
  for (int i = first; i < kv_heads * value_dim; i += step) {
    v_cache.row(slot, i / value_dim)[i % value_dim] = from_f32<T>(v.data[token * v.stride + i]);
  }
}

template <class T>
__device__ inline void store_four(T* to, const float4& v) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = v;
  } else if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(to) = {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w)};
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_fp8(v, 1.0f);
  }
}

// The same for heads that are rotated whole, by halves, four pairs or four elements of a value to a thread.
template <class T>
__global__ void rope_store_quads(RowsOf q, int heads, RowsOf k, RowsOf v, Rotation rotation, Cache<T> k_cache,
                                 Cache<T> v_cache, const int32_t* positions, const int32_t* slots) {
  wait_for_earlier();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int step = static_cast<int>(gridDim.y * blockDim.x);
  const int head_dim = static_cast<int>(k_cache.dim), half = head_dim / 2, quads = half / 4;
  const int value_quads = static_cast<int>(v_cache.dim) / 4, kv_heads = static_cast<int>(k_cache.kv_heads);
  const float* table = rotation.cos_sin + positions[token] * rotation.stride;
  const int rotations = (heads + (k.data != nullptr ? kv_heads : 0)) * quads;
  const int64_t slot = k.data != nullptr ? slots[token] : 0;
  for (int i = first; i < rotations; i += step) {
    const int head = i / quads, pair = i % quads * 4, kv_head = head - heads;
    float* low = kv_head < 0 ? q.data + token * q.stride + head * head_dim + pair
                             : k.data + token * k.stride + kv_head * head_dim + pair;
    const float4 x = load_four(low), y = load_four(low + half);
    const float4 c = load_four(table + pair), s = load_four(table + half + pair);
    const float4 a = {x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y, x.z * c.z - y.z * s.z, x.w * c.w - y.w * s.w};
    const float4 b = {y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y, y.z * c.z + x.z * s.z, y.w * c.w + x.w * s.w};
    if (kv_head < 0) {
      *reinterpret_cast<float4*>(low) = a, *reinterpret_cast<float4*>(low + half) = b;
    } else {
      T* to = k_cache.row(slot, kv_head) + pair;
      store_four(to, a), store_four(to + half, b);
    }
  }
  if (k.data == nullptr) return;
  for (int i = first; i < kv_heads * value_quads; i += step) {
    const int head = i / value_quads, at = i % value_quads * 4;
    store_four(v_cache.row(slot, head) + at, load_four(v.data + token * v.stride + int64_t{head} * v_cache.dim + at));
  }
}

// A warp writes a vector and its scale, as ops::reference::encode_int8 does.
template <class F>
__device__ inline void store_int8(const Cache<int8_t>& cache, int64_t slot, int64_t head, F&& element) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, dim = static_cast<int>(cache.dim);
  unsigned bits = 0;  // magnitudes order as integers; NaN is above all
  for (int i = lane; i < dim; i += kWarp) bits = max(bits, __float_as_uint(element(i)) & 0x7fffffffu);
  const float top = __uint_as_float(__reduce_max_sync(kFullWarp, bits));
  const float inverse = top == 0.0f ? 0.0f : 127.0f / top;
  const bool any = inverse < INFINITY;
  const float by = any && top < INFINITY ? inverse : 0.0f;
  const int64_t vector = cache.vector(slot, head);
  if (lane == 0) cache.scales[vector] = any ? top / 127.0f + (top - top) : top - top;
  int8_t* to = cache.data + vector * dim;
  for (int i = lane; i < dim; i += kWarp) {
    const float x = element(i) * by;
    to[i] = fabsf(x) < 128.0f ? static_cast<int8_t>(__float2int_rn(x)) : int8_t{0};
  }
}

// Into a cache of int8: a warp takes a head of the queries, of the keys or of the values.
__global__ void rope_store_int8(RowsOf q, int heads, RowsOf k, RowsOf v, Rotation rotation, Cache<int8_t> k_cache,
                                Cache<int8_t> v_cache, const int32_t* positions, const int32_t* slots) {
  wait_for_earlier();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / kWarp;
  const int step = static_cast<int>(gridDim.y * blockDim.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head_dim = static_cast<int>(k_cache.dim), value_dim = static_cast<int>(v_cache.dim);
  const int kv_heads = static_cast<int>(k_cache.kv_heads), all = heads + (k.data != nullptr ? 2 * kv_heads : 0);
  const float* table = rotation.cos_sin != nullptr ? rotation.cos_sin + positions[token] * rotation.stride : nullptr;
  for (int i = first; i < all; i += step) {
    if (i < heads) {
      float* head = q.data + token * q.stride + i * head_dim;
      for (int pair = lane; pair < rotation.rotary / 2; pair += kWarp) rotate_pair(rotation, table, head, pair);
    } else if (i < heads + kv_heads) {
      const int head = i - heads;
      const float* from = k.data + token * k.stride + head * head_dim;
      store_int8(k_cache, slots[token], head, [&](int d) { return rotated(rotation, table, from, d); });
    } else {
      const int head = i - heads - kv_heads;
      const float* from = v.data + token * v.stride + head * value_dim;
      store_int8(v_cache, slots[token], head, [&](int d) { return from[d]; });
    }
  }
}

template <class T>
__global__ void latent_store_kernel(RowsOf q, RowsOf q_rope, int heads, RowsOf latent, RowsOf k_rope, Rotation rotation,
                                    Cache<T> cache, const int32_t* positions, const int32_t* slots) {
  const int64_t token = blockIdx.x;
  const int rotary = rotation.rotary, head_dim = static_cast<int>(cache.dim), plain = head_dim - rotary;
  const float* table = rotation.cos_sin + positions[token] * rotation.stride;
  for (int i = threadIdx.x; i < heads * rotary; i += blockDim.x) {
    const float* from = q_rope.data + token * q_rope.stride + i / rotary * rotary;
    q.data[token * q.stride + i / rotary * head_dim + plain + i % rotary] = rotated(rotation, table, from, i % rotary);
  }
  if constexpr (std::is_same_v<T, int8_t>) {
    if (threadIdx.x >= kWarp) return;
    const float *plain_from = latent.data + token * latent.stride, *turned = k_rope.data + token * k_rope.stride;
    store_int8(cache, slots[token], 0,
               [&](int i) { return i < plain ? plain_from[i] : rotated(rotation, table, turned, i - plain); });
  } else {
    T* to = cache.row(slots[token], 0);
    for (int i = threadIdx.x; i < plain; i += blockDim.x) {
      to[i] = from_f32<T>(latent.data[token * latent.stride + i]);
    }
    for (int i = threadIdx.x; i < rotary; i += blockDim.x) {
      to[plain + i] = from_f32<T>(rotated(rotation, table, k_rope.data + token * k_rope.stride, i));
    }
  }
}

RowsOf rows_of(const Tensor& t) { return {t.data != nullptr ? t.f32() : nullptr, t.row_stride}; }

bool takes_quads(const ops::RopeStoreArgs& a) {
  const auto in_fours = [](const Tensor& t) {
    return t.data == nullptr || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.row_stride % 4 == 0);
  };
  const int64_t head_dim = a.k_cache.shape[3];
  return a.cos_sin.data != nullptr && a.cos_sin.shape[1] == head_dim && !a.interleaved && head_dim % 8 == 0 &&
         (a.k.data == nullptr || a.v_cache.shape[3] % 4 == 0) && in_fours(a.q) && in_fours(a.k) && in_fours(a.v) &&
         in_fours(a.cos_sin) && in_fours(a.k_cache) && in_fours(a.v_cache);
}

template <class T>
void store(const Launch& l, const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  const int heads = static_cast<int>(a.q.shape[1] / a.k_cache.shape[3]);
  // A thread has one pair where there are few tokens, all of its stride of a token where these fill the device.
  const int64_t pairs = std::max<int64_t>(a.q.shape[1] / 2, 1), tokens = a.q.rows();
  const int64_t parts = std::clamp<int64_t>(pieces(int64_t{l.multiprocessors} * 8, tokens), 1, pieces(pairs, kThreads));
  const int64_t quads = pieces(a.q.shape[1] / 8, kThreads);
  const bool by_quads = takes_quads(a);
  launch_overlapped(
      l, "rope_store", by_quads ? rope_store_quads<T> : rope_store_kernel<T>,
      dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(by_quads ? std::min(parts, quads) : parts)), kThreads,
      0, rows_of(a.q), heads, rows_of(a.k), rows_of(a.v), rotation_of(a.cos_sin, a.interleaved), cache_of<T>(a.k_cache),
      cache_of<T>(a.v_cache), positions, slots);
}

template <>
void store<int8_t>(const Launch& l, const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  const int heads = static_cast<int>(a.q.shape[1] / a.k_cache.shape[3]);
  const int64_t tokens = a.q.rows(), vectors = heads + (a.k.data != nullptr ? 2 * a.k_cache.shape[1] : 0);
  const int64_t most = pieces(vectors, kThreads / kWarp);
  const int64_t parts = std::clamp<int64_t>(pieces(int64_t{l.multiprocessors} * 8, tokens), 1, most);
  launch_overlapped(l, "rope_store", rope_store_int8, dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(parts)),
                    kThreads, 0, rows_of(a.q), heads, rows_of(a.k), rows_of(a.v), rotation_of(a.cos_sin, a.interleaved),
                    cache_of<int8_t>(a.k_cache), cache_of<int8_t>(a.v_cache), positions, slots);
}

template <class T>
void store(const Launch& l, const ops::LatentStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  const int heads = static_cast<int>(a.q_rope.shape[1] / a.k_rope.shape[1]);
  latent_store_kernel<T><<<static_cast<unsigned>(a.q.rows()), kThreads, 0, l.stream>>>(
      rows_of(a.q), rows_of(a.q_rope), heads, rows_of(a.latent), rows_of(a.k_rope),
      rotation_of(a.cos_sin, a.interleaved), cache_of<T>(a.k_cache), positions, slots);
}

template <class Args>
void by_cache_type(const Launch& l, const Args& args, const int32_t* positions, const int32_t* slots,
                   const char* name) {
  if (args.q.rows() == 0) return;
  const DType type = args.k_cache.dtype;
  if (type == &kFloat32) {
    store<float>(l, args, positions, slots);
  } else if (type == &kBFloat16) {
    store<__nv_bfloat16>(l, args, positions, slots);
  } else if (type == &kFloat16) {
    store<__half>(l, args, positions, slots);
  } else if (type == &kInt8) {
    store<int8_t>(l, args, positions, slots);
  } else {
    CHECK(type == &kFloat8E4M3, "no kernel for a cache of {}", type->name);
    store<__nv_fp8_e4m3>(l, args, positions, slots);
  }
  check_launch(name);
}

}  // namespace

void rope_store(const Launch& l, const ops::RopeStoreArgs& args, const int32_t* positions, const int32_t* slots) {
  by_cache_type(l, args, positions, slots, "rope_store");
}

void latent_store(const Launch& l, const ops::LatentStoreArgs& args, const int32_t* positions, const int32_t* slots) {
  by_cache_type(l, args, positions, slots, "latent_store");
}

}  // namespace sluice::cuda
