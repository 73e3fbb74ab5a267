// Reads hidden states as rows of a table, and writes them as keys that are not rotated.
#include "nn/hidden_input.h"

#include <vector>

namespace sluice {
namespace {

// Where the hidden state before each token is.
std::vector<int32_t> slots_before(const BatchView& batch, int group, int64_t block_size) {
  const Indices table = batch.block_table_of(group);
  std::vector<int32_t> slots;
  slots.reserve(batch.tokens.size());
  for (int s = 0; s < batch.sequences(); ++s) {
    const int32_t* blocks = table.data() + static_cast<int64_t>(s) * batch.block_table_stride;
    for (int row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row) {
      const int64_t before = batch.positions[row] - 1;
      CHECK(before >= 0, "row {} is the first of its text, and has no hidden state before it", row);
      slots.push_back(static_cast<int32_t>(blocks[before / block_size] * block_size + before % block_size));
    }
  }
  return slots;
}

// The hidden states [blocks, 1, block_size, hidden] in a layer of the cache.
Tensor states_of(const KvCache::Layer& kept) {
  const Tensor& k = kept.k;
  if (k.dtype != &kInt8) return k;
  return Tensor(k.data, &kBFloat16, {k.shape[0], k.shape[1], k.shape[2], k.shape[3] / 2});
}

}  // namespace

HiddenInput::HiddenInput(const Weights& w, const HiddenInputSpec& spec, const NormSpec& norm, int hidden)
    : hidden_(hidden),
      hidden_first_(spec.hidden_first),
      embedding_norm_(w, spec.embedding_norm, hidden, norm),
      hidden_norm_(w, spec.hidden_norm, hidden, norm),
      projection_(w, {{spec.projection, hidden}}, 2 * int64_t{hidden}, false) {}

void HiddenInput::operator()(ops::Ctx& c, const BatchView& batch, const KvCache::Layer& kept, const Tensor& x) const {
  const Arena::Scope scope(c.arena);
  const Tensor both = c.arena.take(&kFloat32, {x.rows(), 2 * int64_t{hidden_}});
  const Tensor embeddings = both.slice_columns(hidden_first_ ? hidden_ : 0, hidden_);
  const Tensor states = both.slice_columns(hidden_first_ ? 0 : hidden_, hidden_);
  const Tensor all = states_of(kept);
  const int64_t block_size = all.shape[2];
  const Tensor table(all.data, all.dtype, {all.shape[0] * block_size, hidden_});
  embedding_norm_.into(c, embeddings, x);
  ops::embed(c, states, table, slots_before(batch, kept.group, block_size));
  hidden_norm_.in_place(c, states);
  projection_.into(c, x, both, false);
}

KvShape kept_in(DType cache, KvShape shape) {
  if (cache == &kInt8) shape.head_dim *= 2;
  return shape;
}

void keep_hidden(ops::Ctx& c, const KvCache::Layer& kept, const Indices& slots, const Tensor& hidden) {
  const Tensor all = states_of(kept);
  ops::RopeStoreArgs args;
  args.k = hidden;
  args.q = args.v = hidden.slice_columns(0, 0);
  args.k_cache = all;
  args.v_cache = Tensor(all.data, all.dtype, {all.shape[0], all.shape[1], all.shape[2], 0});
  args.positions = args.slots = slots;
  ops::rope_store(c, args);
}

}  // namespace sluice
