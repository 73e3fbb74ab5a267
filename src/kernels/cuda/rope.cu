// Rotates queries and keys and stores keys and values in the paged cache. Threads cover the pairs and the unrotated
// elements of all heads of a token; fewer tokens get more blocks each. Bound by memory traffic: q is read and written
// once, k and v are read once, the cache is written once. Q is the type of the rows of q, k and v, T that of the cache.
#include <bit>
#include <type_traits>

#include "kernels/cuda/compression.h"
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
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

template <class Q>
struct RowsOf {
  Q* data;
  int64_t stride;
};

template <class Q, class T>
__global__ void rope_store_kernel(RowsOf<Q> q, int heads, RowsOf<Q> k, RowsOf<Q> v, Rotation rotation, Cache<T> k_cache,
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
  if (k.data == nullptr || slots[token] < 0) return;
  const int64_t slot = slots[token];
  const int kv_heads = static_cast<int>(k_cache.kv_heads);
  for (int i = first; i < kv_heads * head_dim; i += step) {
    const int head = i / head_dim;
    const Q* from = k.data + token * k.stride + head * head_dim;
    k_cache.row(slot, head)[i % head_dim] = from_f32<T>(rotated(rotation, table, from, i % head_dim));
  }
  for (int i = first; i < kv_heads * value_dim; i += step) {
    v_cache.row(slot, i / value_dim)[i % value_dim] = from_f32<T>(to_f32(v.data[token * v.stride + i]));
  }
}

template <class T>
__device__ inline void store_four(T* to, const float4& v) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = v;
  } else if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(to) = {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w)};
  } else {
    constexpr auto kKind = std::is_same_v<T, __nv_fp8_e5m2> ? __NV_E5M2 : __NV_E4M3;
    *reinterpret_cast<uint32_t*>(to) = pack_fp8<kKind>(v, 1.0f);
  }
}

// The 16 bytes of a row that a thread takes at a time, as fp32.
template <class Q>
struct Taken {
  static constexpr int kCount = kPack<Q>;
  float v[kCount];

  __device__ explicit Taken(const Q* from) { unpack(*reinterpret_cast<const uint4*>(from), v, from); }
  Taken() = default;

  template <class T>
  __device__ void store(T* to) const {
    if constexpr (kCount == 8 && sizeof(T) == 2) {
      *reinterpret_cast<uint4*>(to) = {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                                       pack2<T>(v[6], v[7])};
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) store_four(to + i, {v[i], v[i + 1], v[i + 2], v[i + 3]});
    }
  }
};

// rope_store for heads that are rotated whole, by halves. A thread takes 16 bytes of each half, or of a value. Heads
// may be normalized first; then 2 to 32 neighbouring threads share a head.
template <class Q, class T>
__global__ void rope_store_packs(RowsOf<Q> q, int heads, RowsOf<Q> k, RowsOf<Q> v, Rotation rotation, Cache<T> k_cache,
                                 Cache<T> v_cache, const int32_t* positions, const int32_t* slots, ops::HeadNorm q_norm,
                                 ops::HeadNorm k_norm) {
  constexpr int kTaken = Taken<Q>::kCount;
  wait_for_earlier();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int step = static_cast<int>(gridDim.y * blockDim.x), lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head_dim = static_cast<int>(k_cache.dim), half = head_dim / 2, packs = half / kTaken;
  const int value_packs = static_cast<int>(v_cache.dim) / kTaken;
  const int kv_heads = k.data != nullptr && slots[token] >= 0 ? static_cast<int>(k_cache.kv_heads) : 0;
  const float* table = rotation.cos_sin + positions[token] * rotation.stride;
  const int rotations = (heads + kv_heads) * packs, all = rotations + kv_heads * value_packs;
  const int64_t slot = kv_heads > 0 ? slots[token] : 0;
  const bool normalizes = q_norm.weight != nullptr || k_norm.weight != nullptr;
  for (int i = first; i - lane < all; i += step) {  // whole warps take part
    const bool rotates = i < rotations;
    if (!rotates && i < all) {
      const int head = (i - rotations) / value_packs, at = (i - rotations) % value_packs * kTaken;
      const Taken<Q> value(v.data + token * v.stride + int64_t{head} * v_cache.dim + at);
      value.store(v_cache.row(slot, head) + at);
    }
    const int head = i / packs, pair = i % packs * kTaken, kv_head = head - heads;
    Q* low = kv_head < 0 ? q.data + token * q.stride + head * head_dim + pair
                         : k.data + token * k.stride + kv_head * head_dim + pair;
    Taken<Q> x, y;
    if (rotates) x = Taken<Q>(low), y = Taken<Q>(low + half);
    if (normalizes) {
      float squares = 0.0f;
      if (rotates) {
#pragma unroll
        for (int j = 0; j < kTaken; ++j) squares += x.v[j] * x.v[j] + y.v[j] * y.v[j];
      }
      for (int lanes = packs / 2; lanes > 0; lanes /= 2) squares += __shfl_xor_sync(kFullWarp, squares, lanes);
      const ops::HeadNorm& norm = kv_head < 0 ? q_norm : k_norm;
      if (rotates && norm.weight != nullptr) {
        const float scale = rsqrtf(squares / static_cast<float>(head_dim) + norm.eps);
#pragma unroll
        for (int j = 0; j < kTaken; j += 4) {
          const float4 a = load_four(norm.weight + pair + j), b = load_four(norm.weight + half + pair + j);
          x.v[j] *= scale * a.x, x.v[j + 1] *= scale * a.y, x.v[j + 2] *= scale * a.z, x.v[j + 3] *= scale * a.w;
          y.v[j] *= scale * b.x, y.v[j + 1] *= scale * b.y, y.v[j + 2] *= scale * b.z, y.v[j + 3] *= scale * b.w;
        }
      }
    }
    if (!rotates) continue;
    Taken<Q> a, b;
#pragma unroll
    for (int j = 0; j < kTaken; j += 4) {
      const float4 cosines = load_four(table + pair + j), sines = load_four(table + half + pair + j);
      const float c[4] = {cosines.x, cosines.y, cosines.z, cosines.w}, s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        a.v[j + n] = x.v[j + n] * c[n] - y.v[j + n] * s[n];
        b.v[j + n] = y.v[j + n] * c[n] + x.v[j + n] * s[n];
      }
    }
    if (kv_head < 0) {
      a.store(low), b.store(low + half);
    } else {
      T* to = k_cache.row(slot, kv_head) + pair;
      a.store(to), b.store(to + half);
    }
  }
}

// Encodes a vector and its scale as ops::reference::encode_int8 does. Called by a whole warp.
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

// rope_store into an int8 cache: a warp takes one head of the queries, the keys or the values.
template <class Q>
__global__ void rope_store_int8(RowsOf<Q> q, int heads, RowsOf<Q> k, RowsOf<Q> v, Rotation rotation,
                                Cache<int8_t> k_cache, Cache<int8_t> v_cache, const int32_t* positions,
                                const int32_t* slots) {
  wait_for_earlier();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / kWarp;
  const int step = static_cast<int>(gridDim.y * blockDim.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head_dim = static_cast<int>(k_cache.dim), value_dim = static_cast<int>(v_cache.dim);
  const bool stores = k.data != nullptr && slots[token] >= 0;
  const int kv_heads = static_cast<int>(k_cache.kv_heads), stored = value_dim > 0 ? 2 * kv_heads : kv_heads;
  const int all = heads + (stores ? stored : 0);
  const float* table = rotation.cos_sin != nullptr ? rotation.cos_sin + positions[token] * rotation.stride : nullptr;
  for (int i = first; i < all; i += step) {
    if (i < heads) {
      Q* head = q.data + token * q.stride + i * head_dim;
      for (int pair = lane; pair < rotation.rotary / 2; pair += kWarp) rotate_pair(rotation, table, head, pair);
    } else if (i < heads + kv_heads) {
      const int head = i - heads;
      const Q* from = k.data + token * k.stride + head * head_dim;
      store_int8(k_cache, slots[token], head, [&](int d) { return rotated(rotation, table, from, d); });
    } else {
      const int head = i - heads - kv_heads;
      const Q* from = v.data + token * v.stride + head * value_dim;
      store_int8(v_cache, slots[token], head, [&](int d) { return to_f32(from[d]); });
    }
  }
}

template <class T>
__global__ void latent_store_kernel(RowsOf<float> q, RowsOf<float> q_rope, int heads, RowsOf<float> latent,
                                    RowsOf<float> k_rope, Rotation rotation, Cache<T> cache, const int32_t* positions,
                                    const int32_t* slots) {
  const int64_t token = blockIdx.x;
  const int rotary = rotation.rotary, head_dim = static_cast<int>(cache.dim), plain = head_dim - rotary;
  const float* table = rotary > 0 ? rotation.cos_sin + positions[token] * rotation.stride : nullptr;
  for (int i = threadIdx.x; i < heads * rotary; i += blockDim.x) {
    const float* from = q_rope.data + token * q_rope.stride + i / rotary * rotary;
    q.data[token * q.stride + i / rotary * head_dim + plain + i % rotary] = rotated(rotation, table, from, i % rotary);
  }
  if (slots[token] < 0) return;
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

template <class Q = float>
RowsOf<Q> rows_of(const Tensor& t) {
  return {t.as<Q>(), t.row_stride};
}

template <class Q>
bool takes_packs(const ops::RopeStoreArgs& a) {
  const auto in_packs = [](const Tensor& t, int64_t elements) {
    return t.data == nullptr || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.row_stride % elements == 0);
  };
  const auto vector = [&](const ops::HeadNorm& norm) {
    return Tensor(reinterpret_cast<std::byte*>(const_cast<float*>(norm.weight)), &kFloat32, {1, a.k_cache.shape[3]});
  };
  constexpr int64_t kTaken = kPack<Q>;
  const int64_t head_dim = a.k_cache.shape[3];
  return a.cos_sin.data != nullptr && a.cos_sin.shape[1] == head_dim && !a.interleaved &&
         head_dim % (2 * kTaken) == 0 && (a.k.data == nullptr || a.v_cache.shape[3] % kTaken == 0) &&
         in_packs(a.q, kTaken) && in_packs(a.k, kTaken) && in_packs(a.v, kTaken) && in_packs(a.cos_sin, 4) &&
         in_packs(a.k_cache, kTaken) && in_packs(a.v_cache, kTaken) && in_packs(vector(a.q_norm), 4) &&
         in_packs(vector(a.k_norm), 4);
}

template <class Q, class T>
void store_rows(const Launch& l, const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  const int heads = static_cast<int>(a.q.shape[1] / a.k_cache.shape[3]);
  // One or few blocks per token where the tokens fill the device, else so many that each thread has little to do.
  const int64_t tokens = a.q.rows(), wanted = pieces(int64_t{l.sm_count} * 8, tokens);
  const auto launch = [&](auto* kernel, int64_t most, auto... more) {
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(std::clamp<int64_t>(wanted, 1, most)));
    launch_pdl(l, "rope_store", kernel, grid, kThreads, 0, rows_of<Q>(a.q), heads, rows_of<Q>(a.k), rows_of<Q>(a.v),
               rotation_of(a.cos_sin, a.interleaved), cache_of<T>(a.k_cache), cache_of<T>(a.v_cache), positions, slots,
               more...);
  };
  if constexpr (!std::is_same_v<T, int8_t>) {
    if (takes_packs<Q>(a)) {
      return launch(rope_store_packs<Q, T>, pieces(a.q.shape[1] / (2 * kPack<Q>), kThreads), a.q_norm, a.k_norm);
    }
  }
  each_head_norm(a,
                 [&](const Tensor& x, const ops::HeadNorm& norm) { rms_norm(l, x, x, norm.weight, norm.eps, 0.0f); });
  if constexpr (std::is_same_v<T, int8_t>) {
    const int64_t vectors = heads + (a.k.data != nullptr ? 2 * a.k_cache.shape[1] : 0);
    launch(rope_store_int8<Q>, pieces(vectors, kThreads / kWarp));
  } else {
    launch(rope_store_kernel<Q, T>, pieces(std::max<int64_t>(a.q.shape[1] / 2, 1), kThreads));
  }
}

template <class T>
void store(const Launch& l, const ops::RopeStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  if (a.q.dtype == &kFloat32) return store_rows<float, T>(l, a, positions, slots);
  CHECK(a.q.dtype == &kBFloat16, "rope_store cannot rotate {} (expected one of: float32, bfloat16)", a.q.dtype->name);
  store_rows<__nv_bfloat16, T>(l, a, positions, slots);
}

template <class T>
void store(const Launch& l, const ops::LatentStoreArgs& a, const int32_t* positions, const int32_t* slots) {
  const int heads = static_cast<int>(a.q_rope.shape[1] / a.k_rope.shape[1]);
  latent_store_kernel<T><<<static_cast<unsigned>(a.q.rows()), kThreads, 0, l.stream>>>(
      rows_of(a.q), rows_of(a.q_rope), heads, rows_of(a.latent), rows_of(a.k_rope),
      rotation_of(a.cos_sin, a.interleaved), cache_of<T>(a.k_cache), positions, slots);
}

// Vectors without a part that is rotated.
template <class T>
void store(const Launch& l, const ops::StoreKeysArgs& a, const int32_t* /*positions*/, const int32_t* slots) {
  latent_store_kernel<T><<<static_cast<unsigned>(a.x.rows()), kThreads, 0, l.stream>>>(
      {}, {}, 0, rows_of(a.x), {}, {}, cache_of<T>(a.k_cache), nullptr, slots);
}

template <class Args>
void by_cache_type(const Launch& l, const Args& args, const int32_t* positions, const int32_t* slots,
                   const char* name) {
  const DType type = args.k_cache.dtype;
  if (type == &kFloat32) {
    store<float>(l, args, positions, slots);
  } else if (type == &kBFloat16) {
    store<__nv_bfloat16>(l, args, positions, slots);
  } else if (type == &kFloat16) {
    store<__half>(l, args, positions, slots);
  } else if (type == &kInt8) {
    store<int8_t>(l, args, positions, slots);
  } else if (type == &kFloat8E5M2) {
    store<__nv_fp8_e5m2>(l, args, positions, slots);
  } else {
    CHECK(type == &kFloat8E4M3, "{}: caches of {} are not supported", name, type->name);
    store<__nv_fp8_e4m3>(l, args, positions, slots);
  }
  check_launch(name);
}

}  // namespace

bool normalizes_heads(const Tensor& cos_sin, bool interleaved, const ops::CacheTensor& keys) {
  const int64_t dim = keys.shape[3];
  const bool packs = dim >= 32 && dim <= 256 && std::has_single_bit(static_cast<uint64_t>(dim));
  return packs && keys.dtype != &kInt8 && cos_sin.data != nullptr && cos_sin.shape[1] == dim && !interleaved;
}

void rope_store(const Launch& l, const ops::RopeStoreArgs& args, const int32_t* positions, const int32_t* slots) {
  if (args.q.rows() > 0) by_cache_type(l, args, positions, slots, "rope_store");
}

void latent_store(const Launch& l, const ops::LatentStoreArgs& args) {
  if (args.q.rows() > 0) by_cache_type(l, args, on_device(l, args.positions), on_device(l, args.slots), "latent_store");
}

void store_keys(const Launch& l, const ops::StoreKeysArgs& args) {
  if (args.x.rows() > 0) by_cache_type(l, args, nullptr, on_device(l, args.slots), "store_keys");
}

}  // namespace sluice::cuda
