// A model that gives one vector per sequence: pools a body's last hidden states, then applies dense layers. Embedding
// models and sequence classifiers differ only in these layers.
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
  std::string norm_name{};  // norm after the activation; empty: none
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

// Builds layers that run one after the other; the first has `inputs` columns.
std::vector<Dense> dense_layers(const Weights& w, int inputs, const std::vector<DenseSpec>& specs);

struct Pooler {
  ops::Pooling pooling = ops::Pooling::kMean;
  std::vector<Dense> dense{};
};

// `body` must be built for a task other than kGenerate. Every row of a batch must be a sample row, because each
// sequence is computed in one step.
std::unique_ptr<Model> pooled_model(std::unique_ptr<Model> body, Pooler pooler);

}  // namespace sluice
