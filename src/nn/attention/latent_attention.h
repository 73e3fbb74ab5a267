// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). Keys and values of all heads are projections of one
// vector per token; that vector, with the rotated part of the keys, is all that is cached. The projection of the keys
// is moved to the queries and that of the values to the results, so that attention has a single kv head whose values
// are the first columns of its keys.
#pragma once

#include "nn/stacked_linear.h"
#include "nn/token_mixer.h"

namespace sluice {

struct LatentAttentionSpec {
  int heads = 0;
  int q_rank = 0;   // of the queries' projection in two steps (q_a_proj, q_a_layernorm, q_b_proj); 0: one (q_proj)
  int kv_rank = 0;  // width of the latent vector
  int nope_dim = 0, rope_dim = 0;  // of a query: not rotated, rotated
  int value_dim = 0;
  float scale = 1.0f;            // of the scores
  bool bias = false;             // of q_a_proj, kv_a_proj_with_mqa and o_proj
  bool interleaved_rope = true;  // pairs (2i, 2i + 1)
  NormSpec norm{};               // of the latent vectors
};

class LatentAttention final : public TokenMixer {
 public:
  LatentAttention(const Weights& w, const LatentAttentionSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override;
  std::optional<KvShape> kv_shape() const override {
    return KvShape{.kv_heads = 1, .head_dim = spec_.kv_rank + spec_.rope_dim, .value_dim = 0};
  }

 private:
  void load_kv_b(const Weights& w);
  void scale_queries(ops::Ctx& c, const Rope::Rows& rope, const Tensor& q) const;
  void pack_heads(const Weights& w, const std::string& name, StackedLinear& into, int64_t rows, int64_t columns) const;

  LatentAttentionSpec spec_;
  Linear q_a_, q_b_;  // q_b_ alone without a rank; its outputs: all heads' parts that are not rotated, then the others
  Norm q_norm_, kv_norm_;
  Linear kv_a_, out_;
  StackedLinear keys_, values_;  // per head: [kv_rank, nope_dim] and [value_dim, kv_rank]
};

}  // namespace sluice
