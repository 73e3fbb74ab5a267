// Products of few rows with weights and inputs of 8-bit floats, without cuBLASLt.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// A product as multiply_fp8 takes it, of up to kMostFp8Rows rows (p.x tells their number), with a scale per output and
// per row: `x` is rounded already, dense. p.bias is not looked at. False on devices or for outputs that it cannot take;
// nothing is done then.
bool multiply_fp8_rows(const Launch&, const Product& p, const std::byte* x, const float* x_scales);
inline constexpr int64_t kMostFp8Rows = 64;

}  // namespace sluice::cuda
