// Activations in fp32, by the formulas of ops::activate.
#pragma once

#include "ops/ops.h"

namespace sluice::cuda {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline float apply(ops::Activation activation, float x) {
  using A = ops::Activation;
  switch (activation) {
    case A::kSilu:
      return x / (1.0f + expf(-x));
    case A::kGelu:
      return 0.5f * x * erfcf(-x * 0.70710678f);
    case A::kGeluTanh:  // (1 + tanh(u)) / 2 is the sigmoid of 2u, which does not cancel
      return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
    case A::kRelu:
      return x < 0.0f ? 0.0f : x;
    case A::kRelu2:
      return x < 0.0f ? 0.0f : x * x;
    case A::kQuickGelu:
      return x * sigmoid(1.702f * x);
    case A::kTanh:
      return tanhf(x);
    case A::kSigmoid:
      return sigmoid(x);
    case A::kIdentity:
      return x;
  }
  return x;
}

// silu(gate) * up with the error of the special function unit, about 2^-21, for results that are rounded.
__device__ inline float silu_product(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

}  // namespace sluice::cuda
