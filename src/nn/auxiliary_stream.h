// The auxiliary stream: tensors that a family carries from layer to layer beside the residual stream. Examples are
// per-layer inputs (Gemma 3n, Gemma 4) and further copies of the residual stream (Gemma 3n).
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
  using Tensors = std::vector<Tensor>;  // tensors of one step, in the arena
  virtual ~AuxiliaryStream() = default;
  // Arena floats per token: the step's tensors plus the most that any call takes besides.
  virtual int64_t floats_per_token() const = 0;
  virtual size_t tensors() const = 0;
  virtual bool capturable() const { return true; }     // see ModelShape::capturable
  virtual bool reads_tokens() const { return false; }  // begin() needs the tokens beside their embeddings
  // The fp32 tensors that begin() returns for a step of `tokens` tokens.
  virtual std::vector<Shape> shapes(int64_t tokens) const = 0;
  // Makes the step's tensors from its embeddings [tokens, hidden].
  virtual Tensors begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) = 0;
  // Change a layer's input and its result in place.
  virtual void before_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const = 0;
  virtual void after_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const = 0;
  // Changes the sample rows of the last layer's result in place, before the final norm.
  virtual void end(ops::Ctx& c, const BatchView& batch, const Tensors& auxiliary, const Tensor& rows) const = 0;
};

// `body` is the prefix of the decoder's tensors ("model").
using MakeAuxiliaryStream =
    std::function<std::unique_ptr<AuxiliaryStream>(const Weights& body, const DecoderSpec& spec)>;

}  // namespace sluice
