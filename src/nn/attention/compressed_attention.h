// Attention over a window of keys and over compressed keys (DeepSeek-V4). All heads share one key per token, which is
// also its value. A token sees the latest keys, and behind them entries that stand for several tokens each
// (ops/compression.h). Where entries are few tokens wide, an indexer selects those that a token sees. The rotation that
// values have as keys is undone in the results. Groups of heads have their own first output projection.
//
// Entries are cached where values of other layers are. What is summed for entries that are not complete is the layer's
// state.
#pragma once

#include <string>

#include "nn/stacked_linear.h"
#include "nn/token_mixer.h"
#include "ops/compression.h"

namespace sluice {

struct CompressorSpec {
  int rate = 0;    // tokens of a window; 0: no entries
  int series = 1;  // 2: entries overlap, and an indexer selects them
  int index_heads = 0, index_dim = 0;
  int index_top_k = 0;  // entries that a token sees at most
};

struct CompressedAttentionSpec {
  int heads = 0, head_dim = 0;
  int q_rank = 0;                // rank of the two-step query projection
  int groups = 1, out_rank = 0;  // groups of heads, and the outputs of each one's projection
  int window = 0;
  float scale = 1.0f;
  NormSpec norm{};
  CompressorSpec compressor{};
};

// Makes entries of `dim` elements.
class Compressor {
 public:
  Compressor() = default;
  Compressor(const Weights& w, const CompressorSpec& spec, int dim, const NormSpec& norm, int hidden);
  // `state`: the columns of this compressor; `entries`: where its part of them is.
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& state,
                  const ops::EntryCache& entries) const;
  int64_t floats_per_token() const { return int64_t{2} * series_ * dim_; }
  int64_t state_values() const { return int64_t{3} * series_ * dim_; }

 private:
  int series_ = 1;
  int64_t dim_ = 0;
  float eps_ = 0.0f;
  Linear in_;  // outputs: values, gates
  Vector bias_, norm_;
};

class CompressedAttention final : public TokenMixer {
 public:
  CompressedAttention(const Weights& w, const CompressedAttentionSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    with_norm(c, step, out, x, accumulate, nullptr);
  }
  void with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                 const NextNorm* next) const override;
  int64_t floats_per_token() const override;
  std::optional<KvShape> kv_shape() const override;
  int64_t state_values() const override { return compressor_.state_values() + index_compressor_.state_values(); }

 private:
  bool compresses() const { return spec_.compressor.rate > 0; }
  bool selects() const { return compresses() && spec_.compressor.series == 2; }
  int64_t entry_stride() const { return spec_.head_dim + (selects() ? spec_.compressor.index_dim : 0); }
  void load_groups(const Weights& w, RowRange groups, int all);
  // Makes the step's entries, and selects those that each row sees if the layer has an indexer.
  Tensor make_entries(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x, const Tensor& q_latent,
                      const ops::EntryCache& entries) const;

  CompressedAttentionSpec spec_;  // with this rank's heads and groups
  Linear in_;                     // outputs: the queries' latent vector, the key
  Norm q_norm_, kv_norm_;
  Linear q_b_;
  Vector sinks_;
  StackedLinear groups_;  // per group [out_rank, its heads * head_dim]
  Linear out_;
  Compressor compressor_, index_compressor_;
  Linear index_q_, index_weights_;
};

}  // namespace sluice
