// The beginning of a decoder that continues another model: where others have the embedding of a token, it has a
// projection of that embedding and of the hidden state that the model had of the token before (multi-token prediction,
// DeepSeek-V3, arXiv:2412.19437, section 2.2).
//
// Hidden states are kept beside keys and values, in the blocks of their tokens. They are thus shared with a prefix,
// copied and moved like these. They have the type of the cache, but no scales: a cache of int8 has them as bf16. The
// token at position 0 has no hidden state before it, so that a step must leave it out.
#pragma once

#include <string>

#include "nn/attention/kv_cache.h"
#include "nn/layers.h"

namespace sluice {

struct HiddenInputSpec {
  std::string path;  // where its tensors are, below DecoderNames::body
  std::string embedding_norm = "enorm", hidden_norm = "hnorm", projection = "eh_proj";
  bool hidden_first = false;  // the first columns of the projection are the hidden state's, not the embedding's
};

class HiddenInput {
 public:
  HiddenInput(const Weights& w, const HiddenInputSpec& spec, const NormSpec& norm, int hidden);
  // Replaces the embeddings x [tokens, hidden] by the projections. Finds the hidden states in `kept`.
  void operator()(ops::Ctx& c, const BatchView& batch, const KvCache::Layer& kept, const Tensor& x) const;
  KvShape kv_shape() const { return {.kv_heads = 1, .head_dim = hidden_, .value_dim = 0}; }
  int64_t floats_per_token() const { return 2 * int64_t{hidden_}; }  // in the arena

 private:
  int hidden_ = 0;
  bool hidden_first_ = false;
  Norm embedding_norm_, hidden_norm_;
  Linear projection_;
};

// What hidden states of this shape take in a cache of this type.
KvShape kept_in(DType cache, KvShape shape);
// Keeps hidden states [tokens, hidden] for the tokens that follow. `slots`: see Batch.
void keep_hidden(ops::Ctx& c, const KvCache::Layer& kept, const Indices& slots, const Tensor& hidden);

}  // namespace sluice
