// Many matrices of one shape as one packed weight: the experts of a layer, the heads of a projection.
#pragma once

#include <string>
#include <vector>

#include "nn/layers.h"

namespace sluice {

class StackedLinear {
 public:
  StackedLinear() = default;
  // Plans `count` matrices [outputs, inputs] of that type in the checkpoint; pack() fills them.
  StackedLinear(LoadContext& context, DType type, int count, int64_t outputs, int64_t inputs);
  // Tensor NAME.weight [count, outputs, inputs].
  StackedLinear(const Weights& w, const std::string& name, int count, int64_t outputs, int64_t inputs);
  // Rows from `row` on of matrix i. Nothing happens unless context.packs(), or without data (a tensor that is missing).
  void pack(LoadContext& context, int i, int64_t row, const Tensor& matrix);
  void set_bias(const LoadContext& context, std::span<const float> bias) {
    bias_ = Vector(context, bias);
  }  // [count, outputs]
  // [outputs]: of a sum of experts whose weights add up to one.
  void set_bias_of_sum(const LoadContext& context, std::span<const float> bias);

  int count() const { return count_; }
  int64_t outputs() const { return outputs_; }
  // out[places, outputs] = the expert's product with the row of x for every place; see ops::ExpertMatmulArgs.
  void experts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Tensor& rows = {},
               const Tensor& gathered = {}) const;
  // A matrix per head; see ops::HeadMatmulArgs.
  void heads(ops::Ctx& c, const Tensor& out, int64_t out_stride, const Tensor& x, int64_t x_stride) const;

 private:
  int count_ = 0;
  int64_t outputs_ = 0;
  PackedWeight weight_;
  Vector bias_;
};

}  // namespace sluice
