// The flat batch: what one step computes. A prefill chunk, a decode step and the verification of a draft are the same
// thing with other lengths; nothing of the engine's features is a mode of the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/indices.h"

namespace sluice {

// Layers that see equally far share their blocks' numbers: a group has a block table and a list of slots of its own in
// every batch. See KvLayout (nn/attention/kv_cache.h).
struct BlockGroup {
  int window = 0;         // > 0: nothing that is so many tokens or more before a token is ever read for it
  int ids_per_block = 1;  // the layers' tensors count blocks in smaller units: block b of the pool is b * ids_per_block
};

struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

struct StateCopy {
  int32_t from = 0;
  int32_t to = 0;
};

struct Batch {
  std::vector<int32_t> tokens;       // [tokens] ids, sequence after sequence
  std::vector<int32_t> from_sample;  // [tokens] or empty: which draw of the step before gives the token, which the host
                                     // does not know yet; -1: it is in `tokens`
  std::vector<int32_t> positions;    // [tokens] of each token in its sequence
  std::vector<int32_t> types;        // [tokens] of models that have token types (ModelShape::token_types)
  std::vector<int32_t> slots;        // [groups, tokens] where its keys and values go: block * block_size + offset
  std::vector<int32_t> query_start;  // [sequences + 1] rows of each sequence
  std::vector<int32_t> kv_len;       // [sequences] tokens in the cache after this step
  std::vector<int32_t> prompt_len;   // [sequences] tokens of the prompt: rope scalings that depend on the text's length
  std::vector<int32_t> block_table;  // [groups, sequences, block_table_stride] block ids, -1 beyond the end
  int block_table_stride = 0;
  std::vector<int32_t> sample_rows;  // rows whose logits are wanted, ascending
  std::vector<BlockCopy> copies;     // copy-on-write, by the pool's numbers: done before the step
  // Of models with recurrent layers. A sequence whose first token is at position 0 begins with a state of zeros,
  // whatever its slot holds.
  std::vector<int32_t> state_slots;     // [sequences] where the state is, read and written
  std::vector<StateCopy> state_copies;  // done before the step, in order

  int sequences() const { return static_cast<int>(kv_len.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
};

// A batch made for one group, for all of `groups`: what was block b becomes the row of pool blocks b * groups and
// after. For callers without a block pool, who count blocks as they like.
void spread_over(Batch& batch, std::span<const BlockGroup> groups, int block_size);

// What a model sees of a batch: its indices, in the host's memory and perhaps on the device (engine/step_inputs.h).
struct BatchView {
  BatchView() = default;
  BatchView(const Batch& b)
      : tokens(b.tokens),
        positions(b.positions),
        types(b.types),
        slots(b.slots),
        query_start(b.query_start),
        kv_len(b.kv_len),
        block_table(b.block_table),
        block_table_stride(b.block_table_stride),
        sample_rows(b.sample_rows),
        state_slots(b.state_slots),
        prompt_len(b.prompt_len) {}

  ops::Indices tokens, positions, types, slots, query_start, kv_len, block_table;  // as in Batch
  int block_table_stride = 0;
  ops::Indices sample_rows, state_slots;
  std::span<const int32_t> prompt_len;

  int sequences() const { return static_cast<int>(kv_len.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  // Of one group.
  ops::Indices slots_of(int group) const { return slots.part(tokens.size() * group, tokens.size()); }
  ops::Indices block_table_of(int group) const {
    const size_t entries = kv_len.size() * block_table_stride;
    return block_table.part(entries * group, entries);
  }
};

}  // namespace sluice
