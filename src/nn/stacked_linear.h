// Many matrices of one shape as one packed weight: the experts of a layer, or the heads of a projection.
#pragma once

#include <string>
#include <vector>

#include "nn/layers.h"

namespace sluice {

class StackedLinear {
 public:
  StackedLinear() = default;
  // Plans `count` matrices [outputs, inputs] whose type in the checkpoint is `type`; pack() fills them. `whole_inputs`:
  // those of all ranks together, if they divide them; 0: inputs.
  StackedLinear(LoadContext& context, DType type, int count, int64_t outputs, int64_t inputs, int64_t whole_inputs = 0);
  // Reads tensor NAME.weight [count, outputs, inputs].
  StackedLinear(const Weights& w, const std::string& name, int count, int64_t outputs, int64_t inputs);
  // Packs rows from `row` on of matrix i. Does nothing unless context.packs(), or if the matrix has no data (a missing
  // tensor).
  void pack(LoadContext& context, int i, int64_t row, const Tensor& matrix);
  void clear(LoadContext& context, int i);  // before another matrix i is packed
  // [count, outputs]. Another call replaces them.
  void set_bias(const LoadContext& context, std::span<const float> bias);
  // [outputs]: a bias for the sum of experts whose weights add up to one.
  void set_bias_of_sum(const LoadContext& context, std::span<const float> bias);

  void adapt(std::shared_ptr<LoraSite> site) { lora_ = std::move(site); }

  int count() const { return count_; }
  int64_t outputs() const { return outputs_; }
  DType type() const { return weight_.view().dtype; }
  bool adapts(const ops::Ctx& c) const { return lora_ != nullptr && lora_->adapts(c); }
  // For every place: out[place, outputs] = the place's row of x times its expert's matrix; see ops::ExpertMatmulArgs.
  void experts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Tensor& rows = {},
               const Tensor& gathered = {}) const;
  // out[place, outputs / 2] = activation(gate) * up of these outputs, of which the gates are the first half, in the
  // type of the weights, for a matmul by `next`. Returns false, having done nothing, if the device does not gain by it;
  // see ops::gated_experts.
  bool gated(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Tensor& rows,
             ops::Activation activation, const StackedLinear& next) const;
  // Whether gated() computes this for so many places, and then takes an x in the type of the weights as well.
  bool takes_gated(const ops::Ctx& c, int64_t places, ops::Activation activation, const StackedLinear& next) const;
  // The same for rows in order of places, with what adapters change: `slots` are those of ops::matrix_slots.
  void experts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Indices& slots) const;
  // One matrix per head; see ops::HeadMatmulArgs. Where adapters change them, rows of `out` are dense.
  void heads(ops::Ctx& c, const Tensor& out, int64_t out_stride, const Tensor& x, int64_t x_stride) const;

 private:
  void change_heads(ops::Ctx& c, const Tensor& out, int64_t out_stride, const Tensor& x, int64_t x_stride) const;

  int count_ = 0;
  int64_t outputs_ = 0;
  PackedWeight weight_;
  Vector bias_;
  std::shared_ptr<LoraSite> lora_;  // where adapters change the matrices; null: they cannot
};

}  // namespace sluice
