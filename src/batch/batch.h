// The flat batch: what one step computes. A prefill chunk, a decode step and the verification of a draft differ only in
// their lengths; no engine feature is a mode of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/indices.h"

namespace sluice {

// A group of layers that see equally far and share block numbers. Every batch has one block table and one list of slots
// per group. KvLayout (nn/attention/kv_cache.h) makes the groups.
struct BlockGroup {
  int window = 0;         // > 0: a token reads only the `window` tokens that end with itself; 0: all tokens
  int ids_per_block = 1;  // the layers' tensors count blocks in smaller units: pool block b is b * ids_per_block
};

struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// Tokens whose keys and values are copied within the cache, in pool slots (block * block_size + offset). No token is
// source and target.
struct TokenCopy {
  int32_t from = 0;
  int32_t to = 0;
};

struct StateCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// Rows whose input vectors are given, in place of those that the embedding table has for their tokens.
struct GivenRows {
  int32_t row = 0;                      // the first one
  int32_t count = 0;                    // rows that follow each other
  std::span<const float> values{};      // [count, ModelShape::input_width], in host memory
  std::shared_ptr<const void> owner{};  // keeps the values until the step is done
};

struct Batch {
  std::vector<int32_t> tokens;       // [tokens] ids, sequence after sequence
  std::vector<int32_t> from_sample;  // [tokens] or empty: index of the previous step's sampled token that goes here,
                                     // as the host does not know it yet; -1: the token is in `tokens`
  std::vector<int32_t> positions;    // [tokens] position of each token in its sequence
  std::vector<int32_t> types;        // [tokens] token types, for models that have them (ModelShape::token_types)
  std::vector<int32_t> slots;        // [groups, tokens] where keys and values go: block * block_size + offset
  std::vector<int32_t> query_start;  // [sequences + 1] first row of each sequence
  std::vector<int32_t> kv_len;       // [sequences] tokens in the cache after this step
  std::vector<int32_t> prompt_len;   // [sequences] tokens of the prompt; some rope scalings depend on it
  std::vector<int32_t> block_table;  // [groups, sequences, block_table_stride] block ids, -1 beyond the end
  int block_table_stride = 0;
  bool wants_hidden = false;         // StepOutput::hidden (nn/model.h) is wanted
  std::vector<int32_t> sample_rows;  // rows whose logits are wanted, ascending
  // Places of the adapters of the rows (ops::LoraShrinkArgs); -1: none. Both are empty if no row has one.
  std::vector<int32_t> adapters;         // [tokens]
  std::vector<int32_t> sample_adapters;  // [sample_rows]
  std::vector<BlockCopy> copies;         // copy-on-write, in pool block numbers; done before the step
  std::vector<TokenCopy> token_copies;   // done before the step, after `copies`; for caches of one group only
  // For models with recurrent layers. A sequence whose first token is at position 0 starts from a zero state,
  // whatever its slot holds.
  std::vector<int32_t> state_slots;     // [sequences] slot of the state that is read and written
  std::vector<StateCopy> state_copies;  // done before the step, in order
  std::vector<GivenRows> given;         // ascending; the tokens of these rows are 0

  int sequences() const { return static_cast<int>(kv_len.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
};

// Turns a batch that was made for one group into one for all of `groups`. Block b becomes the pool blocks
// b * groups .. b * groups + groups - 1. For callers without a block pool, who number blocks as they like.
void spread_over(Batch& batch, std::span<const BlockGroup> groups, int block_size);

// Divides a batch into up to `parts` batches of about equally many rows that do the same when they run in turn. A
// sequence that is cut continues in the next part, unless `whole_sequences`. Copies are in the first part.
std::vector<Batch> split(const Batch& batch, int parts, bool whole_sequences);

// What a model sees of a batch: its indices in host memory, and optionally on the device (engine/step_inputs.h). The
// view does not own them.
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
        wants_hidden(b.wants_hidden),
        sample_rows(b.sample_rows),
        state_slots(b.state_slots),
        adapters(b.adapters),
        sample_adapters(b.sample_adapters),
        prompt_len(b.prompt_len),
        given(b.given) {}

  Indices tokens, positions, types, slots, query_start, kv_len, block_table;  // as in Batch
  int block_table_stride = 0;
  bool wants_hidden = false;
  Indices sample_rows, state_slots, adapters, sample_adapters;
  std::span<const int32_t> prompt_len;
  std::span<const GivenRows> given;

  int sequences() const { return static_cast<int>(kv_len.size()); }
  int size() const { return static_cast<int>(tokens.size()); }
  // The part of one group.
  Indices slots_of(int group) const { return slots.part(tokens.size() * group, tokens.size()); }
  Indices block_table_of(int group) const {
    const size_t entries = kv_len.size() * block_table_stride;
    return block_table.part(entries * group, entries);
  }
};

}  // namespace sluice
