// Products of few rows with weights and inputs of 8-bit floats, without cuBLASLt.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Can this device, and can results be written where p.out is?
bool takes_fp8_rows(const Launch&, const Product& p);
// A product as multiply_fp8 takes it, or one of experts (p.starts), with a scale per output and per row: `x` is rounded
// already, dense; p.x tells the number of rows. p.bias is not looked at.
void multiply_fp8_rows(const Launch&, const Product& p, const std::byte* x, const float* x_scales);
// Rows up to which that takes less time than cuBLASLt: of products with few outputs, and of all.
inline constexpr int64_t kMostFp8Rows = 128, kMostFp8RowsOfAny = 64;

}  // namespace sluice::cuda
