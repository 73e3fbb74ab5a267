// One buffer, cut into per-layer tensors.
#include "nn/kv_cache.h"

#include <algorithm>

namespace sluice {
namespace {

size_t row_bytes(DType dtype, int64_t elements) {
  return static_cast<size_t>(elements) / dtype->block_size * dtype->block_bytes;
}

size_t align(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int widest_window(const std::vector<KvShape>& layers) {
  int widest = 0;
  for (const KvShape& l : layers) {
    if (l.window == 0) return 0;
    widest = std::max(widest, l.window);
  }
  return widest;
}

size_t KvCache::bytes_per_block(const std::vector<KvShape>& layers, DType dtype, int block_size, Layers where) {
  size_t sum = 0, most = 0;
  for (const KvShape& l : layers) {
    const size_t bytes = row_bytes(dtype, int64_t{l.kv_heads} * block_size * (l.head_dim + l.value_dim));
    sum += bytes;
    most = std::max(most, bytes);
  }
  return where == Layers::kShared ? most : sum;
}

KvCache::KvCache(const std::vector<KvShape>& layers, DType dtype, int blocks, int block_size, Layers where,
                 Memory& memory)
    : memory_(bytes_per_block(layers, dtype, block_size, where) * blocks + layers.size() * 128, memory) {
  size_t at = 0;
  const auto take = [&](int heads, int dim) {
    Tensor t(memory_.data() + at, dtype, {blocks, heads, block_size, dim});
    at = align(at + t.bytes());
    return t;
  };
  for (const KvShape& l : layers) {
    if (where == Layers::kShared) at = 0;
    Layer layer;
    layer.k = take(l.kv_heads, l.head_dim);
    layer.v = take(l.kv_heads, l.value_dim);
    layers_.push_back(layer);
    CHECK(at <= memory_.size());
  }
}

void KvCache::copy_blocks(ops::Ctx& c, const ops::Indices& pairs) const {
  for (const Layer& l : layers_) {
    for (const Tensor* t : {&l.k, &l.v}) {
      if (t->row_elements() > 0) ops::copy_rows(c, *t, pairs);
    }
  }
}

}  // namespace sluice
