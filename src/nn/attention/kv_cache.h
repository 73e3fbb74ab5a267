// Memory of the paged KV cache. Each layer has keys and values [blocks, kv_heads, block_size, head_dim]; int8 caches
// also have scales. cache/block_pool.h decides which sequence owns a block; this file only says where its bytes are.
#pragma once

#include <compare>
#include <set>
#include <span>
#include <vector>

#include "batch/batch.h"
#include "ops/ops.h"

namespace sluice {

// What one layer stores per token.
struct KvShape {
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;     // 0: values are columns of the keys and take no memory
  int window = 0;        // > 0: a token never reads positions this many tokens or more before it
  bool entries = false;  // values are no vectors of tokens (ops/compression.h), so they cannot have scales
  bool held = true;      // false: another stage of the pipeline computes the layer, so it has no memory here
  int copies = 1;        // ranks that have these keys and values, if the layer can divide them (attention/key_ranks.h)
};

// How the layers of a model share blocks. A block of the pool has a number of places. Each place has room for the keys
// and values of block_size tokens of one layer.
//
// Layers with a sliding window need few blocks for a long text; layers without one need all. If a model has both kinds,
// its layers are divided into groups of equal window, and a sequence has separate blocks for each group. In a block of
// a group, each place holds one of the group's layers, or several small ones. A group with fewer layers leaves places
// empty. All blocks are therefore alike, and one pool serves all groups (vLLM's hybrid KV cache manager works the same
// way).
struct KvLayout {
  struct Place {
    int64_t k = 0, v = 0;  // elements in one block
  };
  struct Layer {
    int group = 0;
    int place = 0;
    int part = 0;  // index of the part that holds the layer; the group divides a place into ids_per_block parts
  };
  DType dtype = nullptr;
  int block_size = 0;              // tokens of this rank
  ops::KeyShare share{};           // which tokens of a sequence it has
  std::vector<BlockGroup> groups;  // at least one; the group that sees furthest comes first
  std::vector<Place> places;
  std::vector<KvShape> shapes;  // per layer
  std::vector<Layer> layers;

  // Scales are stored apart from keys and values so that vectors stay dense. Layers of a place that have equally many
  // scales in a block store them side by side.
  struct Scales {
    int place = 0;
    int64_t count = 0;  // scales in a block
    bool values = false;
    auto operator<=>(const Scales&) const = default;
  };
  Scales scales_of(size_t layer, bool values) const;
  std::set<Scales> scales() const;  // empty unless the cache is int8

  bool held(size_t place) const;  // whether any layer of the place has memory here
  size_t block_bytes() const;     // only of what is held; 0 if nothing is
};

// All layers are one group, and every layer has its own place.
KvLayout one_group(const std::vector<KvShape>& layers, DType dtype, int block_size);
// One place that all layers use in turn. A layer's keys and values last only until the next layer runs, which suffices
// if every sequence is computed in one step.
KvLayout one_place(const std::vector<KvShape>& layers, DType dtype, int block_size);
// Groups layers by window, for sequences of up to `longest` tokens. Returns one group if grouping saves little or the
// layers do not fit into equal places.
KvLayout groups_by_window(const std::vector<KvShape>& layers, DType dtype, int block_size, int longest);

// Adds the layers of a second model that computes the same tokens. They have places of their own in the blocks of the
// first group, which then sees as far as they do. Their numbers follow those of the first model's layers.
KvLayout with_second_model(KvLayout layout, const std::vector<KvShape>& layers);

class KvCache {
 public:
  struct Layer {
    ops::CacheTensor k, v;
    int group = 0;
    ops::KeyShare share{};
  };

  KvCache(const KvLayout& layout, int blocks, Memory& memory = host_memory());
  // The layers of `whole` from number `first` on, for the second model. It shares the memory of `whole`, which copies
  // and packs the blocks of both and must outlive it.
  KvCache(const KvCache& whole, size_t first);

  const Layer& layer(int i) const { return layers_[i]; }
  void copy_blocks(ops::Ctx& c,
                   const Indices& pairs) const;  // copies whole blocks of the pool; see ops::copy_rows

  // Copies the keys and values of tokens: slot pairs[1] = slot pairs[0], and so on. No slot is source and target. The
  // cache has one group, and all tokens of a sequence.
  void copy_tokens(ops::Ctx& c, std::span<const int32_t> pairs) const;

  // Blocks as plain bytes, for copies outside of the device. `packed` is int8 [rows, bytes]; a block takes
  // packed_bytes() of a row, from `at` on. Both are multiples of 16, and so is the row's size.
  size_t packed_bytes() const;
  // Row pairs[1] = block pairs[0], row pairs[3] = block pairs[2], and so on.
  void pack(ops::Ctx& c, const Tensor& packed, size_t at, const Indices& pairs) const;
  // Block pairs[1] = row pairs[0], and so on.
  void unpack(ops::Ctx& c, const Tensor& packed, size_t at, const Indices& pairs) const;

 private:
  Buffer memory_;
  // [blocks, elements] each: the keys of every place, the values of every place, all scales
  std::vector<Tensor> regions_;
  std::vector<Layer> layers_;
};

}  // namespace sluice
