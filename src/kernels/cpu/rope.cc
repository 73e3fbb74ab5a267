// Rotary embedding of q (in place) and k, and the append of k and v to the paged cache in the cache's type.
// One token at a time; bound by memory traffic.
#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kGrain = 4;  // tokens worth handing to another thread

struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;  // pairs; the other dimensions pass through
  bool interleaved = false;
};

template <class T>
void copy(const float* from, T* to, int64_t count) {
  each_vec(count, [&](int64_t i, auto n) { store(to + i, load(from + i, n), n); });
}

// `to` may be `from` when both have one type.
template <class T>
void rotate(const float* from, T* to, int64_t head_dim, const Rotation& r) {
  if (r.interleaved) {
    // Pairs are neighbours: rotated in a buffer of one vector's worth of pairs, stored through it.
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

template <class T>
T* cache_row(const Tensor& cache, int64_t slot, int64_t head) {
  const int64_t kv_heads = cache.shape[1], block_size = cache.shape[2], dim = cache.shape[3];
  return reinterpret_cast<T*>(cache.data) +
         ((slot / block_size * kv_heads + head) * block_size + slot % block_size) * dim;
}

template <class T>
void rope_store_token(const ops::RopeStoreArgs& args, int64_t token) {
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
  for (int64_t head = 0; head < kv_heads; ++head) {
    rotate(k + head * head_dim, cache_row<T>(args.k_cache, slot, head), head_dim, rotation);
    copy(v + head * value_dim, cache_row<T>(args.v_cache, slot, head), value_dim);
  }
}

template <class T>
void rope_store_as(ThreadPool& pool, const ops::RopeStoreArgs& args) {
  pool.parallel_for(static_cast<int64_t>(args.positions.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) rope_store_token<T>(args, token);
  });
}

template <class T>
void latent_store_token(const ops::LatentStoreArgs& args, int64_t token) {
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
  T* key = cache_row<T>(args.k_cache, args.slots.data()[token], 0);
  copy(row(args.latent), key, latent);
  rotate(row(args.k_rope), key + latent, rotary, rotation);
}

template <class T>
void latent_store_as(ThreadPool& pool, const ops::LatentStoreArgs& args) {
  pool.parallel_for(static_cast<int64_t>(args.positions.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) latent_store_token<T>(args, token);
  });
}

}  // namespace

void latent_store(ThreadPool& pool, const ops::LatentStoreArgs& args) {
  if (args.k_cache.dtype == &kBFloat16) return latent_store_as<Bf16>(pool, args);
  if (args.k_cache.dtype == &kFloat16) return latent_store_as<Fp16>(pool, args);
  if (args.k_cache.dtype == &kFloat8E4M3) return latent_store_as<Fp8>(pool, args);
  latent_store_as<float>(pool, args);
}

void rope_store(ThreadPool& pool, const ops::RopeStoreArgs& args) {
  if (args.k_cache.dtype == &kBFloat16) return rope_store_as<Bf16>(pool, args);
  if (args.k_cache.dtype == &kFloat16) return rope_store_as<Fp16>(pool, args);
  if (args.k_cache.dtype == &kFloat8E4M3) return rope_store_as<Fp8>(pool, args);
  rope_store_as<float>(pool, args);
}

}  // namespace sluice::SLUICE_ISA
