// What feeds every row forward by itself in a layer, where it is neither an MLP nor experts (nn/mlp.h, nn/moe/moe.h).
#pragma once

#include <functional>
#include <memory>

#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // out = or += what it makes of x; both [tokens, hidden].
  virtual void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const = 0;
  virtual int64_t floats_per_token() const = 0;  // of the arena
};

// Builds that of a layer whose tensors are below `layer` ("model.layers.0").
using MakeFeedForward = std::function<std::unique_ptr<FeedForward>(const Weights& layer, int hidden)>;

}  // namespace sluice
