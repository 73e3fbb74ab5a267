// Linear, RMSNorm, embedding.
#include "nn/layers.h"

#include <fmt/core.h>

#include "sluice/error.h"

namespace sluice {

Linear::Linear(const Weights& w, std::initializer_list<Part> parts, int64_t inputs, bool bias) {
  LoadContext& context = w.context();
  const auto kernels = context.ops.matmul.find(context.dtype);
  if (kernels == context.ops.matmul.end()) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("no matrix multiplication for weights of type {} on this backend", context.dtype->name));
  }
  weight_.dtype = context.dtype;
  weight_.k = inputs;
  for (const Part& part : parts) weight_.n += part.outputs;
  const size_t bytes = kernels->second.packed_bytes(weight_.n, weight_.k);
  context.weight_bytes += bytes;
  if (!context.dry) weight_.storage = Buffer(bytes);
  if (bias && !context.dry) bias_.reserve(static_cast<size_t>(weight_.n));

  int64_t row = 0;
  for (const Part& part : parts) {
    const Weights here = w / part.name;
    const TensorEntry* entry = here.tensor("weight", {part.outputs, inputs});
    if (entry != nullptr && !context.dry) kernels->second.pack(context.pool, weight_, row, entry->view());
    if (bias) {
      const std::vector<float> values = here.vector("bias", part.outputs);
      bias_.insert(bias_.end(), values.begin(), values.end());
    } else if (here.has("bias")) {
      context.problems.push_back(
          fmt::format("tensor '{}bias' exists, but the configuration has no bias there", here.prefix()));
    }
    row += part.outputs;
  }
}

Tensor Linear::operator()(ops::Ctx& c, const Tensor& x) const {
  Tensor out = c.arena.take(&kFloat32, {x.rows(), weight_.n});
  ops::matmul(c, {.out = out, .x = x, .weight = &weight_, .bias = bias_.empty() ? nullptr : bias_.data()});
  return out;
}

void Linear::add_to(ops::Ctx& c, const Tensor& residual, const Tensor& x) const {
  ops::matmul(c, {.out = residual,
                  .x = x,
                  .weight = &weight_,
                  .bias = bias_.empty() ? nullptr : bias_.data(),
                  .accumulate = true});
}

Tensor RmsNorm::operator()(ops::Ctx& c, const Tensor& x) const {
  Tensor out = c.arena.take(&kFloat32, x.shape);
  ops::rms_norm(c, out, x, weight_.data(), eps_);
  return out;
}

Embedding::Embedding(const Weights& w, std::string_view name, int64_t vocab, int64_t hidden) {
  const TensorEntry* entry = (w / name).tensor("weight", {vocab, hidden});
  if (entry == nullptr) return;
  w.context().mapped_bytes += entry->bytes;
  table_ = entry->view();
}

Tensor Embedding::operator()(ops::Ctx& c, std::span<const int32_t> ids) const {
  Tensor out = c.arena.take(&kFloat32, {static_cast<int64_t>(ids.size()), table_.shape[1]});
  ops::embed(c, out, table_, ids);
  return out;
}

}  // namespace sluice
