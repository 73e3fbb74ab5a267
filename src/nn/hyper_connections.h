// Hyper-connections (Zhu et al. 2024, arXiv:2409.19606), in the manifold-constrained form (mHC, Xie et al. 2026,
// arXiv:2512.24880). The residual stream is `streams` parallel streams. Before each sublayer, a weighted sum of the
// streams becomes its input. After it, the streams are mixed by a doubly stochastic matrix, and each gets a share of
// the result. All weights depend on the token. A layer of the decoder is one sublayer here, whose result replaces its
// input (Blend::kept = 0).
#pragma once

#include <string>
#include <vector>

#include "nn/auxiliary_stream.h"
#include "nn/layers.h"

namespace sluice {

// Makes the weights of a sublayer, or of the sum of the streams behind the last one, of the streams.
class StreamWeights {
 public:
  // Names of tensors: the matrix [weights, streams * hidden], and the vectors that change its results.
  struct Names {
    std::string matrix, base, scale;
  };
  struct Spec {
    int streams = 4;
    int iterations = 20;
    float eps = 1e-6f;       // lower bound of weights that are divided
    float norm_eps = 1e-6f;  // for the RMSNorm of a token's streams, which has no weight
  };
  StreamWeights(const Weights& w, const Names& names, const Spec& spec, int64_t hidden, bool collapses_only);

  // weights = of streams [tokens, streams * hidden]; both are dense. Takes streams * hidden arena floats per token.
  void into(ops::Ctx& c, const Tensor& weights, const Tensor& streams) const;
  int64_t columns() const { return columns_; }

 private:
  Spec spec_;
  int64_t columns_;
  PackedWeight matrix_;  // fp32 whatever the type of other weights
  Vector base_, scale_;
};

class HyperConnections final : public AuxiliaryStream {
 public:
  // `tables`: rows by token id that layers read, [vocab, columns]; they are the step's last tensor. May be empty.
  HyperConnections(std::vector<StreamWeights> sublayers, StreamWeights head, const StreamWeights::Spec& spec,
                   int64_t hidden, Embedding tables, int64_t table_columns)
      : sublayers_(std::move(sublayers)),
        head_(std::move(head)),
        spec_(spec),
        hidden_(hidden),
        tables_(std::move(tables)),
        table_columns_(table_columns) {}

  static constexpr size_t kTable = 3;  // index of the rows by token id among a step's tensors

  int64_t floats_per_token() const override {
    const int64_t n = spec_.streams;
    return 2 * n * hidden_ + (2 + n) * n + table_columns_ + 2 * n * hidden_ + n;
  }
  size_t tensors() const override { return 8; }
  bool reads_tokens() const override { return table_columns_ > 0; }
  std::vector<Shape> shapes(int64_t tokens) const override;
  Tensors begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) override;
  void before_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const override;
  void after_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const override;
  void end(ops::Ctx& c, const BatchView& batch, const Tensors& auxiliary, const Tensor& rows) const override;

 private:
  Tensor by_stream(const Tensor& streams) const;  // [tokens, streams * hidden] as [tokens * streams, hidden]

  std::vector<StreamWeights> sublayers_;
  StreamWeights head_;
  StreamWeights::Spec spec_;
  int64_t hidden_;
  Embedding tables_;
  int64_t table_columns_;
};

}  // namespace sluice
