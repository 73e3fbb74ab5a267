// Entries: keys that stand for one or several tokens of a text each, and the op that selects those that a row attends
// to.
//
// A text is divided into windows of `rate` tokens. A complete window has one entry. Entries are in the paged cache:
// entry w lies in the block that holds the last token of window w. With a rate of 1, entries are keys of tokens.
#pragma once

#include <algorithm>

#include "ops/ops.h"

namespace sluice::ops {

// Where entries are. The memory of a block holds its entries one after the other, whatever the cache's shape says.
struct EntryCache {
  CacheTensor cache;   // [blocks, 1, block_size, elements per token]; int8 only if each vector is one entry
  int64_t stride = 0;  // elements from an entry to the next
  int64_t first = 0;   // the entry's first element in its stride
  int64_t dim = 0;     // elements of an entry
  int rate = 0;        // tokens of a window

  // Elements per token that the cache needs for entries of `stride` elements, for blocks of any multiple of 8 tokens.
  static constexpr int64_t elements_per_token(int64_t stride, int rate) {
    const int64_t per_eight_tokens = (7 + int64_t{rate}) / rate;
    return (stride * per_eight_tokens + 7) / 8;
  }
  // The vectors of a cache, each of which is the entry of one token.
  static EntryCache of_tokens(const CacheTensor& cache) {
    return {.cache = cache, .stride = cache.shape[3], .first = 0, .dim = cache.shape[3], .rate = 1};
  }
};

// The sequences of a flat batch and their blocks; see AttentionArgs.
struct PagedSequences {
  Indices query_start, kv_len, block_table;
  int block_table_stride = 0;
};

// Selects the entries that each row attends to (the lightning indexer, DeepSeek-V3.2, arXiv:2512.02556). The score of
// an entry is the sum over heads h of weights[t, h] * relu(q[t, h, :] * entry). A row selects the top_k complete
// entries with the highest scores; among equal scores the lower index wins. A row that sees at most top_k entries
// selects all of them, whatever their scores.
struct SelectEntriesArgs {
  Tensor selected;  // out: [tokens, top_k] int32: ascending, then -1
  Tensor q;         // [tokens, heads * dim] fp32, rotated
  Tensor weights;   // [tokens, heads] fp32
  EntryCache entries;
  PagedSequences sequences;
  int first = 0;  // no row selects entries before this one
};

// The number of entries of the longest sequence.
inline int64_t most_entries(const SelectEntriesArgs& args) {
  int32_t longest = 0;
  for (const int32_t length : args.sequences.kv_len) longest = std::max(longest, length);
  return longest / args.entries.rate;
}

void check_entries(const EntryCache& entries);
void check_paged(const PagedSequences& sequences, int64_t tokens, int64_t block_size);
void select_entries(Ctx&, const SelectEntriesArgs& args);

}  // namespace sluice::ops
