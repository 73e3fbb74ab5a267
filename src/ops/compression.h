// Ops of attention over compressed keys, and of hyper-connections (DeepSeek-V4). They have a table
// of their own, Ops::compression.
// An entry (ops/entries.h) is a key and its own value here.
#pragma once

#include "ops/entries.h"

namespace sluice::ops {

// Makes the entries of the windows that this step completes. In every channel, an entry is the mean of its tokens'
// values, weighted by the softmax of their gates. Each gate has a bias for the token's place in the window. The entry
// is then normed (RMSNorm) and rotated for the position of its window's first token.
// With two series, entries overlap. Entry w is the mean over the first series of window w - 1 and the second series of
// window w.
// The state has what is summed so far, per series: the largest gate, the sum of weights, the sum of weighted values.
struct CompressArgs {
  Tensor x;                     // [tokens, series * dim] fp32
  Tensor gates;                 // [tokens, series * dim] fp32
  int series = 1;               // 1 or 2
  const float* bias = nullptr;  // [rate, series * dim]
  const float* norm = nullptr;  // [dim]
  float eps = 0.0f;
  Tensor cos_sin;  // [positions, rotary]; see RotateArgs
  EntryCache entries;
  Tensor state;   // [slots, series * 3 * dim] fp32
  Indices slots;  // [sequences] see Sequences
  PagedSequences sequences;
};

// Attention over the latest tokens' keys and over entries, with one softmax. A row sees the keys of the last `window`
// positions up to its own, and the entries of all windows that are complete at its position.
struct EntryAttentionArgs {
  Tensor out;           // [tokens, heads * dim] fp32
  Tensor q;             // [tokens, heads * dim] fp32, rotated
  CacheTensor k_cache;  // [blocks, 1, block_size, dim]: keys, which are their own values
  int heads = 0;
  int window = 0;
  float scale = 1.0f;
  const float* sinks = nullptr;  // [heads] or null, as in AttentionArgs
  EntryCache entries{};          // without a cache: there are none
  Tensor selected{};             // from select_entries; empty: all entries
  PagedSequences sequences;
};

// Rotates the last `rotary` columns of every head in pairs (2i, 2i + 1), in place.
struct RotateArgs {
  Tensor x;  // [tokens, heads * dim] fp32
  int64_t dim = 0;
  Tensor cos_sin;         // [positions, rotary] fp32, as in RopeStoreArgs
  Indices positions;      // [tokens] rows of cos_sin
  bool backward = false;  // by the negative angles
};

// Stores vectors x [tokens, dim] in the cache [blocks, 1, block_size, dim].
struct StoreKeysArgs {
  Tensor x;
  CacheTensor k_cache;
  Indices slots;  // [tokens] as in RopeStoreArgs
};

// The weights of hyper-connections between n residual streams (mHC, Xie et al. 2026, arXiv:2512.24880), in place. A row
// has the logits of n weights that collapse the streams, of n weights that place a sublayer's result, and of a matrix
// [n, n] that mixes the streams. The weights become sigmoid + eps, 2 * sigmoid, and a doubly stochastic matrix
// (Sinkhorn and Knopp), which is stored transposed: the weights of a new stream follow each other.
// Rows of n logits have only the first kind.
struct StreamWeightsArgs {
  Tensor logits;                 // [rows, (2 + n) * n] or [rows, n] fp32
  const float* scale = nullptr;  // [3] or [1]: factor of each kind of logits
  const float* base = nullptr;   // [columns] added after that
  int streams = 0;               // n
  int iterations = 0;
  float eps = 0.0f;
};

struct CompressionOps {
  void (*compress)(Queue&, const CompressArgs&) = nullptr;
  void (*entry_attention)(Queue&, const EntryAttentionArgs&) = nullptr;
  void (*rotate)(Queue&, const RotateArgs&) = nullptr;
  void (*store_keys)(Queue&, const StoreKeysArgs&) = nullptr;
  void (*stream_weights)(Queue&, const StreamWeightsArgs&) = nullptr;
};

namespace reference {
// For every backend that works on host memory.
extern const CompressionOps kCompression;
}  // namespace reference

// Checked calls.
void compress(Ctx&, const CompressArgs& args);
void entry_attention(Ctx&, const EntryAttentionArgs& args);
void rotate(Ctx&, const RotateArgs& args);
void store_keys(Ctx&, const StoreKeysArgs& args);
void stream_weights(Ctx&, const StreamWeightsArgs& args);

}  // namespace sluice::ops
