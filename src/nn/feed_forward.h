// A feed-forward layer that DecoderSpec's MLP and experts (nn/mlp.h, nn/moe/moe.h) do not describe. It treats each row
// separately.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // out = or += feed_forward(x); both [tokens, hidden]. `auxiliary`: the tensors of the decoder's auxiliary stream.
  virtual void operator()(ops::Ctx& c, std::span<const Tensor> auxiliary, const Tensor& out, const Tensor& x,
                          bool accumulate) const = 0;
  virtual DType input_type(const ops::Ctx&, int64_t) const { return &kFloat32; }  // type of x; see ops::input_type
  virtual int64_t floats_per_token() const = 0;                                   // arena floats
};

// Builds the feed-forward part of a layer whose tensors are below `layer` ("model.layers.0").
using MakeFeedForward = std::function<std::unique_ptr<FeedForward>(const Weights& layer, int hidden)>;

}  // namespace sluice
