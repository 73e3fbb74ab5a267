// An auxiliary stream of one row per token, through which feed-forward layers pass rows on to later ones.
#pragma once

#include "nn/auxiliary_stream.h"

namespace sluice {

class SideRows final : public AuxiliaryStream {
 public:
  // `inputs`: before each layer, the rows become the layer's input. Otherwise they are what the layers wrote last.
  SideRows(int hidden, bool inputs) : hidden_(hidden), inputs_(inputs) {}
  int64_t floats_per_token() const override { return hidden_; }
  size_t tensors() const override { return 1; }
  std::vector<Shape> shapes(int64_t tokens) const override { return {{tokens, hidden_}}; }
  Tensors begin(ops::Ctx& c, const BatchView&, const Tensor& x) override { return {c.arena.take(&kFloat32, x.shape)}; }
  void before_layer(ops::Ctx& c, int, const Tensors& auxiliary, const Tensor& x) const override {
    if (inputs_) ops::copy(c, auxiliary[0], x);
  }
  void after_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  int64_t hidden_;
  bool inputs_;
};

}  // namespace sluice
