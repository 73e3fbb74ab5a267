// The flat batch: what one step computes. A prefill chunk, a decode step and the verification of a draft differ only in
// their lengths. No feature of the engine is a mode of the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/indices.h"

namespace sluice {

// Layers with equal windows share block numbers. Each such group has its own block table and slot list in every batch.
// See KvLayout (nn/attention/kv_cache.h).
struct BlockGroup {
  int window = 0;  // > 0: a token never reads positions this many tokens or more before it
  // The layers' tensors use smaller blocks: pool block b begins at their block b * ids_per_block.
  int ids_per_block = 1;
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
  std::vector<int32_t> tokens;  // [tokens] ids, sequence after sequence
  // [tokens] or empty: index of the previous step's sampled token to use as input; -1: use `tokens`
  std::vector<int32_t> from_sample;
  std::vector<int32_t> positions;  // [tokens] position of each token in its sequence
  std::vector<int32_t> types;      // [tokens] token types, for models that have them (ModelShape::token_types)
  std::vector<int32_t> slots;      // [groups, tokens] where the token's keys and values go: block * block_size + offset
  std::vector<int32_t> query_start;  // [sequences + 1] first row of each sequence, then the end
  std::vector<int32_t> kv_len;       // [sequences] tokens in the cache after this step
  std::vector<int32_t> prompt_len;   // [sequences] length of the prompt, for rope scalings that depend on it
  std::vector<int32_t> block_table;  // [groups, sequences, block_table_stride] block ids, -1 beyond the end
  int block_table_stride = 0;
  std::vector<int32_t> sample_rows;  // rows whose logits are wanted, ascending
  std::vector<BlockCopy> copies;     // copy-on-write, in pool block numbers; done before the step
  // For models with recurrent layers. A sequence whose first token is at position 0 starts from a zero state, whatever
  // its slot holds.
  std::vector<int32_t> state_slots;     // [sequences] slot where the state is read and written
  std::vector<StateCopy> state_copies;  // done before the step, in order

  int sequences() const { return static_cast<int>(kv_len.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
};

// Turns a batch made for one group into one for all of `groups`. Block b becomes the row of pool blocks that starts at
// b * groups. For callers without a block pool, who number blocks as they like.
void spread_over(Batch& batch, std::span<const BlockGroup> groups, int block_size);

// A model's view of a batch: its indices in host memory and perhaps on the device (engine/step_inputs.h).
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
  // The part that belongs to one group.
  ops::Indices slots_of(int group) const { return slots.part(tokens.size() * group, tokens.size()); }
  ops::Indices block_table_of(int group) const {
    const size_t entries = kv_len.size() * block_table_stride;
    return block_table.part(entries * group, entries);
  }
};

}  // namespace sluice
