// Rotary embedding of q (in place) and k. It also appends k and v to the paged cache in the cache's type. One token at
// a time; bound by memory traffic.
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_int8.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kGrain = 4;  // tokens worth handing to another thread

struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;  // number of pairs; the other dimensions pass through
  bool interleaved = false;
};

template <class T>
void copy(const float* from, T* to, int64_t count) {
  each_vec(count, [&](int64_t i, auto n) { store(to + i, load(from + i, n), n); });
}

// `to` may equal `from` when both have the same type.
template <class T>
void rotate(const float* from, T* to, int64_t head_dim, const Rotation& r) {
  if (r.interleaved) {
    // Pairs are adjacent elements: rotate them in a buffer of one vector of pairs, then store that.
    float pairs[2 * kLanes];
    for (int64_t i = 0; i < r.half; i += kLanes) {
      const int64_t count = r.half - i < kLanes ? r.half - i : kLanes;
      for (int64_t j = 0; j < count; ++j) {
        const float x = from[2 * (i + j)], y = from[2 * (i + j) + 1], c = r.cos[i + j], s = r.sin[i + j];
        pairs[2 * j] = x * c - y * s;
        pairs[2 * j + 1] = y * c + x * s;
      }
      each_vec(2 * count, [&](int64_t j, auto n) { store(to + 2 * i + j, load(pairs + j, n), n); });
    }
  } else {
    each_vec(r.half, [&](int64_t i, auto n) {
      const Vec x = load(from + i, n), y = load(from + r.half + i, n), c = load(r.cos + i, n), s = load(r.sin + i, n);
      store(to + i, x * c - y * s, n);
      store(to + r.half + i, y * c + x * s, n);
    });
  }
  const int64_t rest = 2 * r.half;
  copy(from + rest, to + rest, head_dim - rest);
}

// Writes a vector of the cache part by part. With a scale, which is known only at its end, parts are kept in fp32
// first.
template <class T>
class CachedVector {
 public:
  CachedVector(const ops::CacheTensor& cache, int64_t slot, int64_t head, float* whole)
      : dim_(cache.shape[3]), whole_(whole) {
    const int64_t kv_heads = cache.shape[1], block_size = cache.shape[2];
    const int64_t vector = (slot / block_size * kv_heads + head) * block_size + slot % block_size;
    to_ = reinterpret_cast<T*>(cache.data) + vector * dim_;
    if constexpr (kScaled) scale_ = cache.scales + vector;
  }
  auto* at(int64_t i) const {
    if constexpr (kScaled) {
      return whole_ + i;
    } else {
      return to_ + i;
    }
  }
  void finish() const {
    if constexpr (kScaled) encode();
  }

 private:
  static constexpr bool kScaled = std::is_same_v<T, Int8>;

  // Encodes like ops::reference::encode_int8. Magnitudes order as integers; NaN is the largest.
  void encode() const {
    Bytes tops = broadcast_lane(0);
    each_vec(dim_, [&](int64_t i, auto n) { tops = max_lanes(tops, magnitude_bits(load(whole_ + i, n))); });
    const int bits = reduce_max_lanes(tops);
    float top;
    __builtin_memcpy(&top, &bits, sizeof top);
    const float inverse = top == 0.0f ? 0.0f : 127.0f / top;
    const bool any = inverse < __builtin_inff();
    *scale_ = any ? top / 127.0f + (top - top) : top - top;
    const Vec by = broadcast(any && top < __builtin_inff() ? inverse : 0.0f);
    each_vec(dim_, [&](int64_t i, auto n) {
      const Vec x = load(whole_ + i, n) * by;
      store(to_ + i, select(less(abs(x), broadcast(128.0f)), x, zero()), n);
    });
  }

  int64_t dim_;
  float* whole_;
  T* to_;
  float* scale_ = nullptr;
};

// Calls body(token, memory for a vector) for all tokens.
template <class T, class F>
void each_token(ops::Queue& queue, int64_t tokens, int64_t dim, F&& body) {
  float* memory = nullptr;
  if constexpr (std::is_same_v<T, Int8>) {
    memory = reinterpret_cast<float*>(
        queue.threads().scratch(static_cast<size_t>(queue.threads().threads() * dim) * sizeof(float)));
  }
  queue.threads().parallel_for(tokens, kGrain, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t token = begin; token < end; ++token) body(token, memory != nullptr ? memory + worker * dim : nullptr);
  });
}

template <class T>
void rope_store_token(const ops::RopeStoreArgs& args, int64_t token, float* memory) {
  const int64_t head_dim = args.k_cache.shape[3], value_dim = args.v_cache.shape[3], kv_heads = args.k_cache.shape[1];
  Rotation rotation{.interleaved = args.interleaved};
  if (args.cos_sin.data != nullptr) {
    rotation.half = args.cos_sin.shape[1] / 2;
    rotation.cos =
        reinterpret_cast<const float*>(args.cos_sin.data) + args.positions.data()[token] * args.cos_sin.row_stride;
    rotation.sin = rotation.cos + rotation.half;
    float* q = reinterpret_cast<float*>(args.q.data) + token * args.q.row_stride;
    for (int64_t at = 0; at < args.q.shape[1]; at += head_dim) rotate(q + at, q + at, 2 * rotation.half, rotation);
  }
  if (args.k.data == nullptr) return;
  const float* k = reinterpret_cast<const float*>(args.k.data) + token * args.k.row_stride;
  const float* v = reinterpret_cast<const float*>(args.v.data) + token * args.v.row_stride;
  const int64_t slot = args.slots.data()[token];
  if (slot < 0) return;
  for (int64_t head = 0; head < kv_heads; ++head) {
    const CachedVector<T> key(args.k_cache, slot, head, memory);
    rotate(k + head * head_dim, key.at(0), head_dim, rotation);
    key.finish();
    if (value_dim == 0) continue;
    const CachedVector<T> value(args.v_cache, slot, head, memory);
    copy(v + head * value_dim, value.at(0), value_dim);
    value.finish();
  }
}

template <class T>
void rope_store_as(ops::Queue& queue, const ops::RopeStoreArgs& args) {
  const int64_t key_dim = args.k_cache.shape[3], value_dim = args.v_cache.shape[3];
  const int64_t dim = key_dim > value_dim ? key_dim : value_dim;
  each_token<T>(queue, static_cast<int64_t>(args.positions.size()), dim,
                [&](int64_t token, float* memory) { rope_store_token<T>(args, token, memory); });
}

template <class T>
void latent_store_token(const ops::LatentStoreArgs& args, int64_t token, float* memory) {
  const int64_t latent = args.latent.shape[1], rotary = args.k_rope.shape[1], head_dim = latent + rotary;
  const auto row = [&](const Tensor& x) { return reinterpret_cast<float*>(x.data) + token * x.row_stride; };
  const float* cos =
      reinterpret_cast<const float*>(args.cos_sin.data) + args.positions.data()[token] * args.cos_sin.row_stride;
  const Rotation rotation{.cos = cos, .sin = cos + rotary / 2, .half = rotary / 2, .interleaved = args.interleaved};
  float* q = row(args.q) + latent;
  const float* q_rope = row(args.q_rope);
  for (int64_t at = 0; at < args.q_rope.shape[1]; at += rotary, q += head_dim) {
    rotate(q_rope + at, q, rotary, rotation);
  }
  if (args.slots.data()[token] < 0) return;
  const CachedVector<T> key(args.k_cache, args.slots.data()[token], 0, memory);
  copy(row(args.latent), key.at(0), latent);
  rotate(row(args.k_rope), key.at(latent), rotary, rotation);
  key.finish();
}

template <class T>
void latent_store_as(ops::Queue& queue, const ops::LatentStoreArgs& args) {
  each_token<T>(queue, static_cast<int64_t>(args.positions.size()), args.k_cache.shape[3],
                [&](int64_t token, float* memory) { latent_store_token<T>(args, token, memory); });
}

}  // namespace

void latent_store(ops::Queue& queue, const ops::LatentStoreArgs& args) {
  if (args.k_cache.dtype == &kBFloat16) return latent_store_as<Bf16>(queue, args);
  if (args.k_cache.dtype == &kFloat16) return latent_store_as<Fp16>(queue, args);
  if (args.k_cache.dtype == &kFloat8E4M3) return latent_store_as<Fp8>(queue, args);
  if (args.k_cache.dtype == &kFloat8E5M2) return latent_store_as<Fp8E5M2>(queue, args);
  if (args.k_cache.dtype == &kInt8) return latent_store_as<Int8>(queue, args);
  latent_store_as<float>(queue, args);
}

void rope_store(ops::Queue& queue, const ops::RopeStoreArgs& args) {
  if (args.k_cache.dtype == &kBFloat16) return rope_store_as<Bf16>(queue, args);
  if (args.k_cache.dtype == &kFloat16) return rope_store_as<Fp16>(queue, args);
  if (args.k_cache.dtype == &kFloat8E4M3) return rope_store_as<Fp8>(queue, args);
  if (args.k_cache.dtype == &kFloat8E5M2) return rope_store_as<Fp8E5M2>(queue, args);
  if (args.k_cache.dtype == &kInt8) return rope_store_as<Int8>(queue, args);
  rope_store_as<float>(queue, args);
}

}  // namespace sluice::SLUICE_ISA
