// Matmuls of up to some hundred rows with weights and inputs of one type, without cuBLASLt.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Whether this device can multiply 8-bit floats and write results to p.out.
bool takes_fp8_rows(const Launch&, const MatmulProblem& p);
// A matmul of 8-bit floats as matmul_fp8 takes it, or of experts (p.starts), with a scale per output and per row. `x`
// has been rounded already and is dense; p.x tells the number of rows.
void matmul_fp8_rows(const Launch&, const MatmulProblem& p, const std::byte* x, const float* x_scales);
// The most rows for which this is faster than cuBLASLt: for matmuls with few outputs, and for all.
inline constexpr int64_t kMostFp8Rows = 128, kMostFp8RowsOfAny = 64;

// A matmul of 16-bit weights with one matrix. x has the same type or is rounded to it here. Returns false, having done
// nothing, if it cannot.
bool matmul_plain_rows(const Launch&, const MatmulProblem& p);
inline constexpr int64_t kMostPlainRows = 32;

}  // namespace sluice::cuda
