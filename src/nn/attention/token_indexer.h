// The lightning indexer (DeepSeek-V3.2, arXiv:2512.02556): selects the tokens that a layer's attention sees in texts of
// more than top_k tokens. Small queries and one small key per token score all earlier tokens (ops/entries.h). The keys
// are cached where other layers have values, in the type of the cache.
//
// A layer may have no indexer and see what the layer before it saw (IndexShare, arXiv:2603.12201).
#pragma once

#include "nn/layers.h"
#include "nn/token_mixer.h"

namespace sluice {

struct TokenIndexerSpec {
  int top_k = 0;        // tokens that a layer sees at most; 0: all
  bool shared = false;  // the selection is that of the layer before; there is no indexer
  int heads = 0, dim = 0;
  bool interleaved_rope = false;  // of the first dimensions of a head, which are rotated like those of attention

  bool indexes() const { return top_k > 0 && !shared; }
  // Whether a row of the step sees more tokens than it may.
  bool selects(const TokenMixerStep& step) const;
};

class TokenIndexer {
 public:
  TokenIndexer() = default;
  TokenIndexer(const Weights& w, const TokenIndexerSpec& spec, int q_rank, int hidden);
  // Stores the step's keys. If a row may not see all tokens, writes step.selected. `q_latent` [tokens, q_rank] is what
  // the queries of attention are projections of.
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& q_latent) const;
  int64_t floats_per_token() const { return (int64_t{spec_.heads} + 1) * spec_.dim + spec_.heads; }

 private:
  TokenIndexerSpec spec_;
  Linear queries_, key_, weights_;
  Norm key_norm_;
};

}  // namespace sluice
