// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). The keys and values of all heads are projections of one
// latent vector per token. Only that vector and the rotated part of the keys are cached. The key projection is applied
// to the queries and the value projection to the results. Attention therefore has a single kv head, whose values are
// the first columns of its keys.
#pragma once

#include <string>

#include "nn/attention/token_indexer.h"
#include "nn/stacked_linear.h"
#include "nn/token_mixer.h"

namespace sluice {

struct LatentAttentionSpec {
  int heads = 0;
  int q_rank = 0;   // rank of the two-step query projection (q_a_proj, q_a_layernorm, q_b_proj); 0: one step (q_proj)
  int kv_rank = 0;  // width of the latent vector
  int nope_dim = 0, rope_dim = 0;  // unrotated and rotated dimensions of a query
  int value_dim = 0;
  float scale = 1.0f;            // multiplies the scores
  bool bias = false;             // q_a_proj, kv_a_proj_with_mqa and o_proj have a bias
  bool interleaved_rope = true;  // rotates pairs (2i, 2i + 1)
  NormSpec norm{};               // norm of the latent vectors
  float latent_scale = 1.0f;     // multiplies the normed latent vector of keys and values
  TokenIndexerSpec indexer{};    // selects tokens; needs q_rank
  std::string out = "o_proj";
};

class LatentAttention final : public TokenMixer {
 public:
  LatentAttention(const Weights& w, const LatentAttentionSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    with_norm(c, step, out, x, accumulate, nullptr);
  }
  void with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                 const NextNorm* next) const override;
  int64_t floats_per_token() const override;
  std::optional<KvShape> kv_shape() const override {
    const int index_dim = spec_.indexer.indexes() ? spec_.indexer.dim : 0;  // keys of the indexer lie where values do
    return KvShape{
        .kv_heads = 1, .head_dim = spec_.kv_rank + spec_.rope_dim, .value_dim = index_dim, .copies = copies_};
  }
  Selection selection() const override;
  const char* needs_places() const override {
    return spec_.indexer.top_k > 0 ? "its layers choose the tokens that they see" : nullptr;
  }

 private:
  void load_kv_b(const Weights& w, RowRange heads, int all);  // some of all heads
  void adapt_kv_b(const Weights& w, RowRange heads, int64_t all);
  void scale_queries(ops::Ctx& c, const Rope::Rows& rope, const Tensor& q) const;
  void attend_to_selected(ops::Ctx& c, const TokenMixerStep& step, ops::AttentionArgs args) const;
  static void pack_heads(const Weights& w, const std::string& name, int all, RowRange heads, StackedLinear& into,
                         int64_t rows, int64_t columns);

  LatentAttentionSpec spec_;  // of this rank's heads; every rank needs the latent vectors
  int copies_ = 1;            // KvShape::copies
  int64_t attend_floats_ = 0;
  Linear q_a_, q_b_;  // q_b_ alone if q_rank is 0; outputs: the unrotated parts of all heads, then the rotated parts
  Norm q_norm_, kv_norm_;
  Linear kv_a_, out_;
  TokenIndexer indexer_;
  StackedLinear keys_, values_;  // per head [kv_rank, nope_dim] and [value_dim, kv_rank]
};

}  // namespace sluice
