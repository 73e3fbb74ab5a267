// A model that gives one vector of each sequence: a body's last hidden states, pooled, then dense layers. Embedding
// models and sequence-classification heads are the same thing with other layers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/layers.h"
#include "nn/model.h"

namespace sluice {

struct DenseSpec {
  std::string name{};  // tensors NAME.weight [outputs, inputs] and NAME.bias
  int outputs = 0;
  bool bias = true;
  ops::Activation activation = ops::Activation::kIdentity;
  std::string norm_name{};  // of a norm after the activation; empty: none
  NormSpec norm{};
};

class Dense {
 public:
  Dense(const Weights& w, const DenseSpec& spec, int inputs);
  Tensor operator()(ops::Ctx& c, const Tensor& x) const;  // new [rows, outputs] from the arena
  int outputs() const { return spec_.outputs; }

 private:
  DenseSpec spec_;
  Linear linear_;
  Norm norm_;
};

// Layers one after the other, the first one of `inputs` columns.
std::vector<Dense> dense_layers(const Weights& w, int inputs, const std::vector<DenseSpec>& specs);

struct Pooler {
  ops::Pooling pooling = ops::Pooling::kMean;
  std::vector<Dense> dense{};
};

// `body` was built for a task other than kGenerate. Every row of a batch must be a sample row: sequences come whole.
std::unique_ptr<Model> pooled_model(std::unique_ptr<Model> body, Pooler pooler);

}  // namespace sluice
