// Instructions of the persistent decode kernel for single ops, and which operands the kernel takes (translate.h).
#pragma once

#include "kernels/cuda/decode_kernel/captured_op.h"

namespace sluice::cuda {

// Whether x has rows of fp32 that the kernel takes.
bool few_rows(const Tensor& x);
inline bool few_rows(const NormOp& op) { return few_rows(op.x) && op.out.dtype == &kFloat32; }
// Whether rows consist of whole, aligned packs of 16 bytes.
bool in_packs(const Tensor& x);
inline bool is_quantized(DType type) { return type != &kBFloat16 && type != &kFloat16; }

// The operands must be fp32.
GatherInstruction gather_of(const GatherOp& op);
NormInstruction norm_of(const NormOp& op);
GluInstruction glu_of(const GluOp& op);
RopeInstruction rope_of(const RopeOp& op);
// Plain weights and 8-bit floats are read through tensor maps, which are not set yet; other weights are read as panels,
// and must have them (matmul/panel_layout.h).
MatmulInstruction matmul_of(const MatmulProblem& p);

}  // namespace sluice::cuda
