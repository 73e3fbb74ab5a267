// What a family carries from layer to layer beside the residual stream: inputs of each layer (Gemma 3n, Gemma 4), more
// copies of the stream (Gemma 3n).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "batch/batch.h"
#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

struct DecoderSpec;

class AuxiliaryStream {
 public:
  using Tensors = std::vector<Tensor>;  // of a step, in the arena
  virtual ~AuxiliaryStream() = default;
  // Of the arena: what a step's tensors take, and the most that any of the calls takes besides.
  virtual int64_t floats_per_token() const = 0;
  virtual size_t tensors() const = 0;
  virtual bool capturable() const { return true; }  // as ModelShape::replayable
  // From the embeddings of a step, [tokens, hidden]; takes the step's tensors.
  virtual Tensors begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) = 0;
  // What a layer is given and what it has made, in place.
  virtual void before_layer(ops::Ctx& c, int layer, const Tensors& side, const Tensor& x) const = 0;
  virtual void after_layer(ops::Ctx& c, int layer, const Tensors& side, const Tensor& x) const = 0;
  // The sample rows of the last layer's result, before the final norm, in place.
  virtual void end(ops::Ctx& c, const BatchView& batch, const Tensors& side, const Tensor& rows) const = 0;
};

// `body` is where the decoder's tensors are ("model").
using MakeAuxiliaryStream =
    std::function<std::unique_ptr<AuxiliaryStream>(const Weights& body, const DecoderSpec& spec)>;

}  // namespace sluice
