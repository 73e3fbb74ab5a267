// The product of gate and up by the formula of ops::clamped_glu.
#pragma once

namespace sluice::cuda {

__device__ inline float clamped_product(float gate, float up, float alpha, float limit) {
  gate = gate > limit ? limit : gate;
  up = up < -limit ? -limit : up > limit ? limit : up;
  return gate / (1.0f + expf(-alpha * gate)) * (up + 1.0f);
}

}  // namespace sluice::cuda
