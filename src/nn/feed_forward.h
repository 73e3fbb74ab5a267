// A feed-forward layer that is neither an MLP nor experts (nn/mlp.h, nn/moe/moe.h). It treats each row separately.
#pragma once

#include <functional>
#include <memory>

#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // out = or += feed_forward(x); both [tokens, hidden].
  virtual void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const = 0;
  virtual DType input_type(const ops::Ctx&, int64_t) const { return &kFloat32; }  // type of x; see ops::input_type
  virtual int64_t floats_per_token() const = 0;                                   // arena floats
};

// Builds the feed-forward part of a layer whose tensors are below `layer` ("model.layers.0").
using MakeFeedForward = std::function<std::unique_ptr<FeedForward>(const Weights& layer, int hidden)>;

}  // namespace sluice
