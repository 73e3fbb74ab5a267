// Memory of the paged KV cache: for every layer keys and values [blocks, kv_heads, block_size, head_dim]. Which block
// belongs to whom is decided elsewhere (cache/block_pool.h); this is only where the bytes lie.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace sluice {

// What one layer keeps per token.
struct KvShape {
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;  // 0: values are a part of the keys and take no memory
  int window = 0;     // > 0: nothing that is so many tokens or more before a token is ever read for it
};

// The widest window of all layers; 0 when one of them has none.
int widest_window(const std::vector<KvShape>& layers);

class KvCache {
 public:
  struct Layer {
    Tensor k, v;
  };

  // kShared: all layers lie in the same memory. What a layer stores lasts until the next one runs, which is enough
  // where every sequence comes whole.
  enum class Layers { kApart, kShared };

  KvCache(const std::vector<KvShape>& layers, DType dtype, int blocks, int block_size, Layers where = Layers::kApart,
          Memory& memory = host_memory());

  static size_t bytes_per_block(const std::vector<KvShape>& layers, DType dtype, int block_size,
                                Layers where = Layers::kApart);

  const Layer& layer(int i) const { return layers_[i]; }
  void copy_blocks(ops::Ctx& c, const ops::Indices& pairs) const;  // of all layers, see ops::copy_rows

 private:
  Buffer memory_;
  std::vector<Layer> layers_;
};

}  // namespace sluice
