// Products of up to some hundred rows with weights and inputs of one type, without cuBLASLt.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Of 8-bit floats. Can this device, and can results be written where p.out is?
bool takes_fp8_rows(const Launch&, const MatmulProblem& p);
// A product as matmul_fp8 takes it, or one of experts (p.starts), with a scale per output and per row: `x` is rounded
// already, dense; p.x tells the number of rows.
void matmul_fp8_rows(const Launch&, const MatmulProblem& p, const std::byte* x, const float* x_scales);
// Rows up to which that takes less time than cuBLASLt: of products with few outputs, and of all.
inline constexpr int64_t kMostFp8Rows = 128, kMostFp8RowsOfAny = 64;

// Of 16 bits, one matrix, x of the same type or rounded to it here. False where it cannot; nothing is done then.
bool matmul_plain_rows(const Launch&, const MatmulProblem& p);
inline constexpr int64_t kMostPlainRows = 32;

}  // namespace sluice::cuda
