// Pools a body's hidden states and applies dense layers.
#include "nn/pooled.h"

#include <algorithm>

namespace sluice {
namespace {

class PooledModel final : public Model {
 public:
  PooledModel(std::unique_ptr<Model> body, Pooler pooler)
      : body_(std::move(body)), pooler_(std::move(pooler)), shape_(body_->shape()) {
    widest_ = shape_.width;
    if (!pooler_.dense.empty()) shape_.width = pooler_.dense.back().outputs();
    for (const Dense& dense : pooler_.dense) widest_ = std::max(widest_, dense.outputs());
  }

  const ModelShape& shape() const override { return shape_; }

  size_t activation_bytes(int tokens, int rows) const override {
    const auto vectors = static_cast<int64_t>(pooler_.dense.size()) + 1;
    return body_->activation_bytes(tokens, tokens) + static_cast<size_t>(rows * vectors * widest_) * sizeof(float) +
           static_cast<size_t>(vectors) * 64;
  }

  StepOutput forward(ops::Ctx& c, const BatchView& batch, KvCache& kv, StateCache& states) override {
    const Tensor rows = body_->forward(c, batch, kv, states).hidden;
    if (rows.data == nullptr) return {};  // a later stage of the pipeline has the result
    CHECK(rows.rows() == batch.size(), "{} sample rows for {} tokens", rows.rows(), batch.size());
    Tensor x = c.arena.take(&kFloat32, {batch.sequences(), rows.shape[1]});
    ops::pooling(c, {.out = x, .x = rows, .query_start = batch.query_start, .pooling = pooler_.pooling});
    for (const Dense& dense : pooler_.dense) x = dense(c, x);
    return {.hidden = x};
  }

 private:
  std::unique_ptr<Model> body_;
  Pooler pooler_;
  ModelShape shape_;
  int widest_ = 0;
};

}  // namespace

Dense::Dense(const Weights& w, const DenseSpec& spec, int inputs)
    : spec_(spec), linear_(w, {{spec.name, spec.outputs}}, inputs, spec.bias) {
  if (!spec.norm_name.empty()) norm_ = Norm(w, spec.norm_name, spec.outputs, spec.norm);
}

Tensor Dense::operator()(ops::Ctx& c, const Tensor& x) const {
  const Tensor out = linear_(c, x);
  if (spec_.activation != ops::Activation::kIdentity) ops::unary(c, out, spec_.activation);
  if (!spec_.norm_name.empty()) norm_.in_place(c, out);
  return out;
}

std::vector<Dense> dense_layers(const Weights& w, int inputs, const std::vector<DenseSpec>& specs) {
  std::vector<Dense> layers;
  for (const DenseSpec& spec : specs) {
    layers.emplace_back(w, spec, inputs);
    inputs = spec.outputs;
  }
  return layers;
}

std::unique_ptr<Model> pooled_model(std::unique_ptr<Model> body, Pooler pooler) {
  return std::make_unique<PooledModel>(std::move(body), std::move(pooler));
}

}  // namespace sluice
