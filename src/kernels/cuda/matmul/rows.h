// Matmuls with weights and inputs of one type, without cuBLASLt (compute capability 9.0): of up to some hundred rows
// (rows.cu), and of experts or more rows (grouped.cu).
#pragma once

#include <cuda.h>

#include <optional>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// The operands of such a matmul. `bytes` of each row are multiplied, a multiple of 128.
struct RowOperands {
  DType type;  // bfloat16, float16 or float8_e4m3fn
  int64_t bytes;
  int64_t weight_pitch;                  // bytes from a row to the next one
  const std::byte* x;                    // rows for MatmulProblem::x, in the order of the results
  int64_t x_pitch;                       // bytes from a row to the next one
  const float* weight_scales = nullptr;  // of 8-bit floats: one per row of the weights,
  const float* x_scales = nullptr;       // and of x
  // rows.cu: even parts of k whose sums are added in order, or 0 for as many as take the least time. A part's sum is
  // one chain of tensor-core sums, whatever the tiles. grouped.cu has one part.
  int parts = 0;
};
// Describes rows for TMA tiles of 128 bytes of `tile_rows` rows. Rows beyond the last are zeros.
CUtensorMap rows_map(const std::byte* rows, int64_t count, int64_t pitch, int64_t bytes, unsigned tile_rows);

// Whether the kernels of rows.cu run on this device and write results to p.out.
bool takes_rows(const Launch&, const MatmulProblem& p);
// A matmul that takes_rows(), of any of these types.
void matmul_rows(const Launch&, const MatmulProblem& p, const RowOperands& operands);
// A matmul of 8-bit floats as matmul_fp8 takes it, or of experts (p.starts), with a scale per output and per row. `x`
// has been rounded already and is dense; p.x tells the number of rows.
void matmul_fp8_rows(const Launch&, const MatmulProblem& p, const std::byte* x, const float* x_scales);
// The most rows for which this is faster than cuBLASLt: for matmuls with few outputs, and for all.
inline constexpr int64_t kMostFp8Rows = 128, kMostFp8RowsOfAny = 64;

// The operands of a matmul of 16-bit weights. x has the same type, or is rounded to it in the workspace. nullopt, and
// nothing was done, if rows of x are not aligned or the workspace is too small.
std::optional<RowOperands> plain_operands(const Launch&, const MatmulProblem& p);
// A matmul of 16-bit weights, of one matrix with up to kMostPlainRows rows or of experts. x has the same type or is
// rounded to it here. Returns false, having done nothing, if it cannot.
bool matmul_plain_rows(const Launch&, const MatmulProblem& p);
inline constexpr int64_t kMostPlainRows = 32;

// lora_rows.cu: a matmul of bf16 weights whose results adapters change, in place of lora_shrink, the matmul and
// lora_expand. `slots` are those of `change`, on the device. Returns false, having done nothing, if it cannot.
bool matmul_lora_rows(const Launch&, const MatmulProblem& p, const ops::LoraShrinkArgs& change, const int32_t* slots);

// grouped.cu: experts, or one matrix, with many rows. Returns false, having done nothing, if it cannot.
bool matmul_grouped(const Launch&, const MatmulProblem& p, const RowOperands& operands);
// The same with out = silu(gate) * up in the type of the weights, which have 16 bits. Of the p.n outputs, the first
// half are the gates.
bool matmul_gated(const Launch&, const MatmulProblem& p);

}  // namespace sluice::cuda
