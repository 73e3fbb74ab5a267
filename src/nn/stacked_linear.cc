// Plans and packs stacked matrices, and calls the two ops on them.
#include "nn/stacked_linear.h"

#include "ops/gated_matmul.h"
#include "quant/groups.h"

namespace sluice {

namespace {

// Matrices that are quantized to fp8_e4m3 here have one scale per row.
ops::InputRounding rounding_of(const LoadContext& context, DType type, int64_t inputs) {
  const bool becomes = type != &quant::Fp8::kType && context.matrix_type(type, inputs) == &quant::Fp8::kType;
  return context.fp8_activations && becomes ? ops::InputRounding::kFp8PerRow : ops::InputRounding::kNone;
}

}  // namespace

StackedLinear::StackedLinear(LoadContext& context, DType type, int count, int64_t outputs, int64_t inputs,
                             int64_t whole_inputs)
    : count_(count), outputs_(outputs) {
  if (whole_inputs == 0) whole_inputs = inputs;
  weight_ = PackedWeight(context, context.matrix_type(type, whole_inputs), count * ops::stacked_outputs(outputs),
                         inputs, rounding_of(context, type, whole_inputs));
}

StackedLinear::StackedLinear(const Weights& w, const std::string& name, int count, int64_t outputs, int64_t inputs) {
  LoadContext& context = w.context();
  const TensorEntry* entry = (w / name).tensor("weight", {count, outputs, inputs}, Weights::Stored::kAnyWay);
  *this = StackedLinear(context, entry != nullptr ? entry->dtype : context.dtype, count, outputs, inputs);
  Buffer memory;
  for (int i = 0; entry != nullptr && context.packs() && i < count_; ++i) {
    int64_t row = 0;
    for (const Tensor& rows : entry->rows_in_memory(i * outputs, outputs, context.queue.threads(), memory)) {
      pack(context, i, row, rows);
      row += rows.rows();
    }
  }
}

void StackedLinear::set_bias(const LoadContext& context, std::span<const float> bias) {
  if (bias_.empty()) {
    bias_ = Vector(context, bias);
  } else {
    bias_.replace(context, bias);
  }
}

void StackedLinear::set_bias_of_sum(const LoadContext& context, std::span<const float> bias) {
  std::vector<float> all;
  for (int i = 0; i < count_; ++i) all.insert(all.end(), bias.begin(), bias.end());
  set_bias(context, all);
}

void StackedLinear::pack(LoadContext& context, int i, int64_t row, const Tensor& matrix) {
  CHECK(i >= 0 && i < count_ && row + matrix.rows() <= outputs_, "rows {} + {} of matrix {}", row, matrix.rows(), i);
  weight_.pack(context, i * ops::stacked_outputs(outputs_) + row, matrix);
}

void StackedLinear::clear(LoadContext& context, int i) {
  const int64_t rows = ops::stacked_outputs(outputs_);
  weight_.clear(context, i * rows, rows);
}

void StackedLinear::experts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Tensor& rows,
                            const Tensor& gathered) const {
  ops::expert_matmul(c, {.out = out,
                         .x = x,
                         .rows = rows,
                         .gathered = gathered,
                         .starts = starts,
                         .weight = &weight_.view(),
                         .bias = bias_.data()});
}

bool StackedLinear::gated(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts, const Tensor& rows,
                          ops::Activation activation, const StackedLinear& next) const {
  if (type() != next.type() || adapts(c) || next.adapts(c)) return false;
  return ops::gated_experts(
      c, {.out = out, .x = x, .rows = rows, .starts = starts, .weight = &weight_.view(), .bias = bias_.data()},
      activation, next.outputs());
}

bool StackedLinear::takes_gated(const ops::Ctx& c, int64_t places, ops::Activation activation,
                                const StackedLinear& next) const {
  if (type() != next.type() || adapts(c) || next.adapts(c)) return false;
  return ops::takes_gated_experts(
      c, type(),
      {.experts = count_, .places = places, .units = outputs_ / 2, .k = weight_.view().k, .next_n = next.outputs()},
      activation);
}

void StackedLinear::experts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& starts,
                            const Indices& slots) const {
  if (!adapts(c)) return experts(c, out, x, starts);
  const ops::LoraWeight& w = lora_->weight;
  const Tensor inner(c.adapters->scratch.data, &kFloat32, {ops::LoraWeight::inner_rows(x.rows()), w.inner()});
  ops::lora_shrink(c, {.inner = inner, .x = x, .slots = slots, .weight = &w, .computed = true});
  experts(c, out, x, starts);
  ops::lora_expand(c, {.out = out, .inner = inner, .slots = slots, .weight = &w, .computed = true});
}

void StackedLinear::heads(ops::Ctx& c, const Tensor& out, int64_t out_stride, const Tensor& x, int64_t x_stride) const {
  ops::head_matmul(c, {.out = out,
                       .x = x,
                       .heads = count_,
                       .n = outputs_,
                       .out_stride = out_stride,
                       .x_stride = x_stride,
                       .weight = &weight_.view()});
  if (adapts(c)) change_heads(c, out, out_stride, x, x_stride);
}

// Takes each head of a token for a row.
void StackedLinear::change_heads(ops::Ctx& c, const Tensor& out, int64_t out_stride, const Tensor& x,
                                 int64_t x_stride) const {
  const ops::LoraWeight& w = lora_->weight;
  const int64_t tokens = x.rows(), rows = tokens * count_;
  CHECK(x_stride == w.k && out.row_stride == count_ * out_stride, "rows of {} heads", count_);
  Arena::Scope scope(c.arena);
  Tensor from = x;
  if (x.row_stride != count_ * x_stride) {
    from = c.arena.take(&kFloat32, {tokens, count_ * x_stride});
    ops::copy(c, from, x);
  }
  from = Tensor(from.data, &kFloat32, {rows, w.k});
  Tensor to(out.data, &kFloat32, {rows, w.n});
  to.row_stride = out_stride;
  const auto slots = [&](bool shared) {
    const Tensor list = c.arena.take(&kInt32, {rows});
    ops::matrix_slots(c, {.out = list, .slots = c.adapters->slots, .matrices = count_, .shared = shared});
    const auto* computed = list.as<const int32_t>();
    return Indices({computed, static_cast<size_t>(rows)}, computed);
  };
  const Indices own = slots(false), shared = slots(true);
  const Tensor inner(c.adapters->scratch.data, &kFloat32, {ops::LoraWeight::inner_rows(rows), w.inner()});
  const bool a_is_shared = lora_->matrices_a() == 1, b_is_shared = lora_->matrices_b() == 1;
  ops::lora_shrink(c, {.inner = inner, .x = from, .slots = a_is_shared ? shared : own, .weight = &w, .computed = true});
  ops::lora_expand(c, {.out = to, .inner = inner, .slots = b_is_shared ? shared : own, .weight = &w, .computed = true});
}

}  // namespace sluice
