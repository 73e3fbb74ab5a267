// Inputs that every layer gets of its own (Gemma 3n, Gemma 4): from a token's id by a table, and from its embedding by
// a projection. A layer gates them by what it has made, projects them back and norms them.
#pragma once

#include <string>
#include <vector>

#include "batch/batch.h"
#include "nn/layers.h"

namespace sluice {

struct PerLayerInputSpec {
  int layers = 0;
  int width = 0;       // of one layer's inputs
  int vocab = 0;       // rows of the table; ids beyond it count as 0
  bool clips = false;  // whether there are such ids
  float table_scale = 1.0f;
  float sum_scale = 1.0f;  // of table and projection
  ops::Activation activation = ops::Activation::kGeluTanh;
  NormSpec norm{};
  std::string layer_path;     // of the layers below the body: "layers"
  std::string input_scale{};  // below a layer: scales what gates the inputs; empty: none
};

class PerLayerInputs {
 public:
  PerLayerInputs() = default;
  PerLayerInputs(const Weights& body, const PerLayerInputSpec& spec, int hidden);
  // All layers' inputs [tokens, layers * width] of tokens with embeddings x.
  Tensor of(ops::Ctx& c, const BatchView& batch, const Tensor& x);
  // What layer `i` adds for having made x: new [tokens, hidden].
  Tensor added(ops::Ctx& c, int i, const Tensor& inputs, const Tensor& x) const;

  bool capturable() const { return !spec_.clips; }  // clipped ids are made on the host, in every step
  int64_t floats_kept() const { return int64_t{spec_.layers} * spec_.width; }  // per token, by of()
  int64_t floats_taken() const { return std::max(floats_kept(), int64_t{spec_.width} + hidden_); }  // at once, besides

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
  std::vector<int32_t> ids_;  // of the step, as far as the table goes
};

}  // namespace sluice
