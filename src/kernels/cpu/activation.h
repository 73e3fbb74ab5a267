// Activation functions on fp32 vectors.
#pragma once

#include "kernels/cpu/simd.h"
#include "ops/ops.h"

namespace sluice::SLUICE_ISA {

// Calls body with the vector function of `activation` as a compile-time constant.
template <class F>
SLUICE_INLINE void with_activation(ops::Activation activation, F&& body) {
  const auto scaled_sigmoid = [](Vec x, float by) { return x / (broadcast(1.0f) + exp(x * broadcast(-by))); };
  using ops::Activation;
  switch (activation) {
    case Activation::kSilu:
      return body([=](Vec x) { return scaled_sigmoid(x, 1.0f); });
    case Activation::kQuickGelu:
      return body([=](Vec x) { return scaled_sigmoid(x, 1.702f); });
    case Activation::kGelu:
      return body([](Vec x) { return broadcast(0.5f) * x * (broadcast(1.0f) + erf(x * broadcast(0.70710678f))); });
    case Activation::kGeluTanh:  // (1 + tanh(u)) / 2 equals sigmoid(2u), which does not cancel
      return body([](Vec x) {
        const Vec twice = fma(x * x * x, broadcast(0.044715f), x) * broadcast(1.5957691f);
        return x / (broadcast(1.0f) + exp(zero() - twice));
      });
    case Activation::kRelu:
      return body([](Vec x) { return max(zero(), x); });
    case Activation::kRelu2:
      return body([](Vec x) {
        const Vec positive = max(zero(), x);
        return positive * positive;
      });
    case Activation::kTanh:
      return body([](Vec x) { return tanh(x); });
    case Activation::kSigmoid:
      return body([](Vec x) { return sigmoid(x); });
    case Activation::kIdentity:
      return body([](Vec x) { return x; });
  }
}

}  // namespace sluice::SLUICE_ISA
