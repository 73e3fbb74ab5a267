// Per-layer inputs (Gemma 3n, Gemma 4). Each layer gets its own vector per token, from a table by token id and from the
// token's embedding by a projection. A layer gates the vector with its result, projects it back and norms it.
#pragma once

#include <string>
#include <vector>

#include "batch/batch.h"
#include "nn/layers.h"

namespace sluice {

struct PerLayerInputSpec {
  int layers = 0;
  int width = 0;       // width of one layer's inputs
  int vocab = 0;       // rows of the table; larger ids count as 0
  bool clips = false;  // true if such larger ids exist
  float table_scale = 1.0f;
  float sum_scale = 1.0f;  // multiplies the sum of table and projection
  ops::Activation activation = ops::Activation::kGeluTanh;
  NormSpec norm{};
  std::string layer_path;     // prefix of the layers below the body: "layers"
  std::string input_scale{};  // tensor below a layer that scales the gate's input; empty: none
};

class PerLayerInputs {
 public:
  PerLayerInputs() = default;
  PerLayerInputs(const Weights& body, const PerLayerInputSpec& spec, int hidden);
  // Computes the inputs of all layers [tokens, layers * width] for tokens with embeddings x.
  Tensor of(ops::Ctx& c, const BatchView& batch, const Tensor& x);
  // What layer `i` adds after computing x: new [tokens, hidden].
  Tensor added(ops::Ctx& c, int i, const Tensor& inputs, const Tensor& x) const;

  bool capturable() const { return !spec_.clips; }  // clipped ids are computed on the host in every step
  int64_t floats_kept() const { return int64_t{spec_.layers} * spec_.width; }  // arena floats per token that of() keeps
  // further arena floats taken at once
  int64_t floats_taken() const { return std::max(floats_kept(), int64_t{spec_.width} + hidden_); }

 private:
  struct Layer {
    Linear gate, projection;
    Norm norm;
  };
  PerLayerInputSpec spec_;
  int64_t hidden_ = 0;
  Embedding table_;
  Linear projection_;
  Norm norm_;
  std::vector<Layer> layers_;
  std::vector<int32_t> ids_;  // the step's ids, clipped to the table
};

}  // namespace sluice
