// The layers every decoder is made of. The member list is the weight list (style G10).
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "nn/weights.h"
#include "ops/ops.h"

namespace sluice {

// y = x W^T + b. Several projections of the same input are fused into one matrix, outputs in the order given.
class Linear {
 public:
  struct Part {
    std::string_view name;  // "q_proj": tensors q_proj.weight [outputs, inputs] and q_proj.bias [outputs]
    int64_t outputs;
  };
  Linear() = default;
  Linear(const Weights& w, std::initializer_list<Part> parts, int64_t inputs, bool bias);

  Tensor operator()(ops::Ctx& c, const Tensor& x) const;               // new [tokens, outputs] from the arena
  void add_to(ops::Ctx& c, const Tensor& residual, const Tensor& x) const;  // residual += this(x)
  int64_t outputs() const { return weight_.n; }

 private:
  ops::Weight weight_;
  std::vector<float> bias_;
};

// x / rms(x) * weight (Zhang and Sennrich 2019, arXiv:1910.07467).
class RmsNorm {
 public:
  RmsNorm() = default;
  RmsNorm(const Weights& w, std::string_view name, int64_t size, float eps) : weight_((w / name).vector("weight", size)), eps_(eps) {}
  Tensor operator()(ops::Ctx& c, const Tensor& x) const;  // new tensor of x's shape

 private:
  std::vector<float> weight_;
  float eps_ = 0;
};

// A table of token vectors, read in place from the mapped file.
class Embedding {
 public:
  Embedding() = default;
  Embedding(const Weights& w, std::string_view name, int64_t vocab, int64_t hidden);
  Tensor operator()(ops::Ctx& c, std::span<const int32_t> ids) const;  // [tokens, hidden] fp32

 private:
  Tensor table_;
};

}  // namespace sluice
