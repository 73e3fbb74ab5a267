// Memory of the paged KV cache: for every layer keys and values [blocks, kv_heads, block_size, head_dim], of int8 with
// their scales. Which block belongs to whom is decided elsewhere (cache/block_pool.h); this is only where the bytes
// lie.
#pragma once

#include <compare>
#include <set>
#include <vector>

#include "batch/batch.h"
#include "ops/ops.h"

namespace sluice {

// What one layer keeps per token.
struct KvShape {
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;  // 0: values are a part of the keys and take no memory
  int window = 0;     // > 0: nothing that is so many tokens or more before a token is ever read for it
};

// How the layers of a model share blocks. A block of the pool is a number of places, each with room for the keys and
// the values of block_size tokens in one layer.
//
// Layers with a sliding window need few blocks of a long text, layers without one need all. Where a model has both, its
// layers are divided into groups that see equally far, and a sequence has blocks for each group by itself. In a block
// of a group each place holds one of the group's layers, or several small ones; a group of fewer layers leaves the rest
// empty. So all blocks are alike and one pool serves all groups (vLLM's hybrid KV cache manager has the same idea).
struct KvLayout {
  struct Place {
    int64_t k = 0, v = 0;  // elements of one block
  };
  struct Layer {
    int group = 0;
    int place = 0;
    int part = 0;  // of the place, which the group divides into ids_per_block
  };
  DType dtype = nullptr;
  int block_size = 0;              // tokens
  std::vector<BlockGroup> groups;  // one at least; the one that sees furthest is the first
  std::vector<Place> places;
  std::vector<KvShape> shapes;  // per layer
  std::vector<Layer> layers;

  // Scales lie apart from keys and values, so that vectors stay dense: those of all layers of a place that have equally
  // many of them in a block, side by side.
  struct Scales {
    int place = 0;
    int64_t count = 0;  // in a block
    bool values = false;
    auto operator<=>(const Scales&) const = default;
  };
  Scales scales_of(size_t layer, bool values) const;
  std::set<Scales> scales() const;  // none but of int8

  size_t block_bytes() const;
};

// Every layer has a place of its own, all are one group.
KvLayout one_group(const std::vector<KvShape>& layers, DType dtype, int block_size);
// One place that all layers use in turn. What a layer stores lasts until the next one runs, which is enough where every
// sequence comes whole.
KvLayout one_place(const std::vector<KvShape>& layers, DType dtype, int block_size);
// Groups by window, for sequences of up to `longest` tokens; one group where that saves little, or where the layers'
// sizes do not fit into equal places.
KvLayout groups_by_window(const std::vector<KvShape>& layers, DType dtype, int block_size, int longest);

class KvCache {
 public:
  struct Layer {
    ops::CacheTensor k, v;
    int group = 0;
  };

  KvCache(const KvLayout& layout, int blocks, Memory& memory = host_memory());

  const Layer& layer(int i) const { return layers_[i]; }
  void copy_blocks(ops::Ctx& c, const Indices& pairs) const;  // whole blocks of the pool, see ops::copy_rows

 private:
  Buffer memory_;
  std::vector<Tensor> regions_;  // [blocks, elements]: the keys of every place, the values of every place, all scales
  std::vector<Layer> layers_;
};

}  // namespace sluice
