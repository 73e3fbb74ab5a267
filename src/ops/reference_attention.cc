// Scalar reference of the ops on the paged cache: rope_store, latent_store, attention with a two-pass softmax, and
// merge_parts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/reference.h"

namespace sluice::ops::reference {
namespace {

// Returns the index of the vector of one kv head at `slot` in a cache [blocks, kv_heads, block_size, dim].
int64_t vector_of(const CacheTensor& cache, int64_t slot, int64_t head) {
  const int64_t kv_heads = cache.shape[1], block_size = cache.shape[2];
  return (slot / block_size * kv_heads + head) * block_size + slot % block_size;
}
std::byte* address(const CacheTensor& cache, int64_t vector) {
  return cache.data + vector * cache.shape[3] * cache.dtype->block_bytes;
}

void store(const CacheTensor& cache, int64_t slot, int64_t head, const float* from) {
  const int64_t vector = vector_of(cache, slot, head);
  if (cache.dtype == &kInt8) {
    cache.scales[vector] = encode_int8(from, reinterpret_cast<int8_t*>(address(cache, vector)), cache.shape[3]);
  } else {
    from_float(cache.dtype, from, address(cache, vector), static_cast<size_t>(cache.shape[3]));
  }
}

// Decodes the first elements of the vector.
void load(const CacheTensor& cache, int64_t slot, int64_t head, std::span<float> to) {
  const int64_t vector = vector_of(cache, slot, head);
  if (cache.dtype != &kInt8) return to_float(cache.dtype, address(cache, vector), to.data(), to.size());
  const auto* codes = reinterpret_cast<const int8_t*>(address(cache, vector));
  for (size_t i = 0; i < to.size(); ++i) to[i] = cache.scales[vector] * static_cast<float>(codes[i]);
}

void rotate(float* head, const float* cos_sin, int64_t rotary_dim, bool interleaved) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& a = head[interleaved ? 2 * i : i];
    float& b = head[interleaved ? 2 * i + 1 : i + half];
    const double x = a, y = b, c = cos_sin[i], s = cos_sin[half + i];
    a = static_cast<float>(x * c - y * s);
    b = static_cast<float>(y * c + x * s);
  }
}

// The keys that a row sees, as indices of the cache.
struct Keys {
  Keys(const AttentionArgs& args, int64_t sequence, int64_t at) : position(at) {
    begin = args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
    if (args.chunk > 0) begin = position / args.chunk * args.chunk;
    end = args.causal ? position + 1 : args.kv_len[sequence];
    if (args.window > 0) end = std::min<int64_t>(end, position + args.window);
    begin = args.share.count(std::max<int64_t>(begin, args.first)), end = args.share.count(end);
  }

  // The row sees only these positions, up to the first negative one.
  void select(const int32_t* positions, int64_t most) {
    selected = positions, begin = 0;
    for (end = 0; end < most && positions[end] >= 0;) ++end;
  }

  int64_t count() const { return std::max<int64_t>(0, end - begin); }
  int64_t at(int64_t i) const { return selected != nullptr ? selected[i] : begin + i; }

  int64_t position, begin = 0, end = 0;
  const int32_t* selected = nullptr;
};

// Keys [begin, end) of one kv head and their values, decoded once for all rows that see them.
class Decoded {
 public:
  Decoded(Queue& queue, const AttentionArgs& args, int64_t sequence, int64_t kv_head, int64_t begin, int64_t end)
      : begin_(begin),
        key_dim_(args.k_cache.shape[3]),
        value_dim_(args.v_cache.data != nullptr ? args.v_cache.shape[3] : 0),
        keys_(static_cast<size_t>((end - begin) * key_dim_)),
        values_(static_cast<size_t>((end - begin) * value_dim_)) {
    const int32_t* table = args.block_table.data() + sequence * args.block_table_stride;
    const int64_t block_size = args.k_cache.shape[2];
    queue.threads().parallel_for(end - begin, 64, [&](int64_t i, int64_t last) {
      for (; i < last; ++i) {
        const int64_t key = begin + i, slot = table[key / block_size] * block_size + key % block_size;
        load(args.k_cache, slot, kv_head, {keys_.data() + i * key_dim_, static_cast<size_t>(key_dim_)});
        if (value_dim_ == 0) continue;
        load(args.v_cache, slot, kv_head, {values_.data() + i * value_dim_, static_cast<size_t>(value_dim_)});
      }
    });
  }

  const float* key(int64_t i) const { return keys_.data() + (i - begin_) * key_dim_; }
  const float* value(int64_t i) const {  // the first columns of keys can be values
    return value_dim_ > 0 ? values_.data() + (i - begin_) * value_dim_ : key(i);
  }

 private:
  int64_t begin_, key_dim_, value_dim_;
  std::vector<float> keys_, values_;
};

// Computes one row and head: `q` is [head_dim], `out` is [value_dim].
class Head {
 public:
  Head(const AttentionArgs& args, const Decoded& decoded, const Keys& keys, int64_t head)
      : args_(args), decoded_(decoded), keys_(keys), head_(head) {}

  // Returns the logarithm of the sum of exponentials.
  double attend(const float* q, std::span<float> out) const {
    std::vector<double> weights(static_cast<size_t>(keys_.count()));
    multiply_keys(q, weights);
    double top = args_.sinks ? args_.sinks[head_] : -INFINITY;
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = score(weights[i], keys_.begin + static_cast<int64_t>(i));
      top = std::max(top, weights[i]);
    }
    double sum = args_.sinks ? std::exp(args_.sinks[head_] - top) : 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    std::vector<double> mixed(out.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      const float* value = decoded_.value(keys_.at(static_cast<int64_t>(i)));
      for (size_t d = 0; d < mixed.size(); ++d) mixed[d] += weights[i] * value[d];
    }
    for (size_t d = 0; d < mixed.size(); ++d) out[d] = weights.empty() ? 0.0f : static_cast<float>(mixed[d] / sum);
    return top + std::log(sum);
  }

 private:
  // Each dot product is summed in order. Four at a time do not wait for each other's additions.
  void multiply_keys(const float* q, std::vector<double>& dots) const {
    const auto count = static_cast<int64_t>(dots.size()), dim = args_.k_cache.shape[3];
    for (int64_t i = 0; i < count; i += 4) {
      const float* keys[4];
      for (int64_t j = 0; j < 4; ++j) keys[j] = decoded_.key(keys_.at(std::min(i + j, count - 1)));
      double sums[4] = {};
      for (int64_t d = 0; d < dim; ++d) {
        for (int j = 0; j < 4; ++j) sums[j] += double{q[d]} * keys[j][d];
      }
      std::copy_n(sums, std::min<int64_t>(4, count - i), dots.begin() + i);
    }
  }

  double score(double dot, int64_t key) const {
    dot *= args_.scale;
    if (args_.soft_cap > 0) dot = args_.soft_cap * std::tanh(dot / args_.soft_cap);
    if (args_.alibi_slopes) dot += double(args_.alibi_slopes[head_]) * static_cast<double>(key - keys_.position);
    if (args_.relative_bias) {
      const int64_t reach = args_.relative_reach, distance = std::clamp(key - keys_.position, -reach, reach);
      dot += args_.relative_bias[head_ * (2 * reach + 1) + reach + distance];
    }
    return dot;
  }

  const AttentionArgs& args_;
  const Decoded& decoded_;
  const Keys& keys_;
  int64_t head_;
};

}  // namespace

float encode_int8(const float* from, int8_t* to, int64_t count) {
  float top = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(from[i]);
    top = std::max(top, std::abs(from[i]));
  }
  std::fill_n(to, count, int8_t{0});
  if (!finite) return NAN;
  const float inverse = 127.0f / top;  // may be infinite if all elements are tiny
  if (top == 0 || std::isinf(inverse)) return 0;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(std::nearbyint(from[i] * inverse));
  return top / 127.0f;
}

void rope_store(Queue&, const RopeStoreArgs& args) {
  const int64_t kv_heads = args.k_cache.shape[1], head_dim = args.k_cache.shape[3], value_dim = args.v_cache.shape[3];
  const int64_t heads = args.q.shape[1] / head_dim;
  std::vector<float> key(head_dim);
  for (size_t t = 0; t < args.positions.size(); ++t) {
    const bool rotated = args.cos_sin.data != nullptr;
    const int64_t rotary_dim = rotated ? args.cos_sin.shape[1] : 0;
    const float* cos_sin = rotated ? args.cos_sin.f32() + args.positions[t] * args.cos_sin.row_stride : nullptr;
    float* q = args.q.f32() + t * args.q.row_stride;
    for (int64_t h = 0; h < heads; ++h) rotate(q + h * head_dim, cos_sin, rotary_dim, args.interleaved);
    for (int64_t h = 0; args.k.data != nullptr && args.slots[t] >= 0 && h < kv_heads; ++h) {
      const float* k = args.k.f32() + t * args.k.row_stride + h * head_dim;
      const float* v = args.v.f32() + t * args.v.row_stride + h * value_dim;
      key.assign(k, k + head_dim);
      rotate(key.data(), cos_sin, rotary_dim, args.interleaved);
      store(args.k_cache, args.slots[t], h, key.data());
      if (value_dim > 0) store(args.v_cache, args.slots[t], h, v);
    }
  }
}

void latent_store(Queue&, const LatentStoreArgs& args) {
  const int64_t latent = args.latent.shape[1], rotary = args.k_rope.shape[1], head_dim = latent + rotary;
  const int64_t heads = args.q_rope.shape[1] / rotary;
  std::vector<float> key(head_dim);
  for (size_t t = 0; t < args.positions.size(); ++t) {
    const float* cos_sin = args.cos_sin.f32() + args.positions[t] * args.cos_sin.row_stride;
    for (int64_t h = 0; h < heads; ++h) {
      float* q = args.q.f32() + t * args.q.row_stride + h * head_dim + latent;
      std::copy_n(args.q_rope.f32() + t * args.q_rope.row_stride + h * rotary, rotary, q);
      rotate(q, cos_sin, rotary, args.interleaved);
    }
    if (args.slots[t] < 0) continue;
    std::copy_n(args.latent.f32() + t * args.latent.row_stride, latent, key.data());
    std::copy_n(args.k_rope.f32() + t * args.k_rope.row_stride, rotary, key.data() + latent);
    rotate(key.data() + latent, cos_sin, rotary, args.interleaved);
    store(args.k_cache, args.slots[t], 0, key.data());
  }
}

void attention(Queue& queue, const AttentionArgs& args) {
  const int64_t head_dim = args.k_cache.shape[3], group = args.heads / args.k_cache.shape[1];
  const int64_t value_dim = args.v_cache.data != nullptr ? args.v_cache.shape[3] : args.value_dim;
  for (size_t s = 0; s < args.kv_len.size(); ++s) {
    const auto sequence = static_cast<int64_t>(s);
    const int64_t begin = args.query_start[s], rows = args.query_start[s + 1] - begin;
    if (rows == 0) continue;
    const auto keys_of = [&](int64_t row) { return Keys(args, sequence, args.kv_len[s] - rows + row); };
    const bool selects = args.selected.data != nullptr;
    const int64_t first_key = selects ? 0 : keys_of(0).begin;
    const int64_t end_key = selects ? args.kv_len[s] : std::max(first_key, keys_of(rows - 1).end);
    for (int64_t kv_head = 0; kv_head < args.k_cache.shape[1]; ++kv_head) {
      const Decoded decoded(queue, args, sequence, kv_head, first_key, end_key);
      queue.threads().parallel_for(rows * group, 1, [&](int64_t item, int64_t end) {
        for (; item < end; ++item) {
          const int64_t row = item / group, head = kv_head * group + item % group;
          Keys keys = keys_of(row);
          if (selects) {
            const int64_t most = args.selected.shape[1];
            keys.select(args.selected.as<int32_t>() + (begin + row) * most, most);
          }
          const float* q = args.q.f32() + (begin + row) * args.q.row_stride + head * head_dim;
          float* out = args.out.f32() + (begin + row) * args.out.row_stride + head * value_dim;
          const double sum = Head(args, decoded, keys, head).attend(q, {out, static_cast<size_t>(value_dim)});
          if (args.log_sums.data == nullptr) continue;
          args.log_sums.f32()[(begin + row) * args.log_sums.row_stride + head] = static_cast<float>(sum);
        }
      });
    }
  }
}

void merge_parts(Queue&, const MergePartsArgs& args) {
  const int64_t parts = args.parts, heads = args.heads, dim = args.out.shape[1] / heads;
  std::vector<double> weights(static_cast<size_t>(parts)), mixed(static_cast<size_t>(dim));
  for (int64_t t = 0; t < args.out.shape[0]; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* logs = args.log_sums.f32() + t * args.log_sums.row_stride + h;
      double top = args.sinks ? args.sinks[h] : -INFINITY;
      for (int64_t p = 0; p < parts; ++p) top = std::max<double>(top, logs[p * heads]);
      double sum = args.sinks ? std::exp(args.sinks[h] - top) : 0.0;
      for (int64_t p = 0; p < parts; ++p) sum += weights[p] = std::exp(logs[p * heads] - top);
      std::ranges::fill(mixed, 0.0);
      for (int64_t p = 0; p < parts; ++p) {
        const float* x = args.x.f32() + t * args.x.row_stride + (p * heads + h) * dim;
        for (int64_t d = 0; d < dim; ++d) mixed[d] += weights[p] / sum * x[d];
      }
      float* out = args.out.f32() + t * args.out.row_stride + h * dim;
      for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>(mixed[d]);
    }
  }
}

void copy_rows(Queue&, Tensor to, Tensor from, Indices pairs) {
  const auto bytes_of = [](const Tensor& x, int64_t elements) {
    return static_cast<size_t>(elements) * x.dtype->block_bytes;
  };
  const size_t bytes = bytes_of(to, to.row_elements());
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const std::byte* source = from.data + bytes_of(from, pairs[i] * from.row_stride);
    std::byte* target = to.data + bytes_of(to, pairs[i + 1] * to.row_stride);
    if (source != target) std::memcpy(target, source, bytes);
  }
}

}  // namespace sluice::ops::reference
