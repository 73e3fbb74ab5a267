// Patterns of consecutive captured ops that instructions of the persistent decode kernel stand for (translate.h).
#pragma once

#include <optional>
#include <span>

#include "kernels/cuda/decode_kernel/captured_op.h"

namespace sluice::cuda {

// Returns the arguments of op `at`; null if there is none or it is another op.
template <class Op>
const Op* op_at(std::span<const CapturedOp> ops, size_t at) {
  return at < ops.size() ? std::get_if<Op>(&ops[at].description) : nullptr;
}

// Whether the op behind a matmul reads its result and can become a part of it. A matmul then does not write the
// summands of a sum, which nothing else may read.
bool gates(const GluOp& glu, const MatmulInstruction& matmul);
bool sums(const SumOp& sum, const MatmulInstruction& matmul);

// The norms of `q` and `k`, in front of a rotation in place, as a part of the attention behind the rotation. None if
// they are others.
std::optional<HeadNorms> head_norms(const NormInstruction& q, const NormInstruction& k, const RopeInstruction& rope);

// Whether one of these ops reads x before another one writes it. What an op without a description reads is not known.
bool reads_before_write(std::span<const CapturedOp> ops, const Tensor& x);

// The ops of experts, in this order behind the matmul of their router.
struct ExpertOps {
  static constexpr size_t kCount = 6;
  ops::RouteArgs choice;
  ops::GroupByExpertArgs order;
  MatmulProblem in;
  GluOp gate;
  MatmulProblem out;
  ops::CombineArgs sum;
};
// None if the first ops are others, or if the kernel cannot execute them.
std::optional<ExpertOps> experts_behind(const MatmulInstruction& router, std::span<const CapturedOp> ops);
// Their two instructions. `out` reads the results of all choices of a row side by side, and so adds them up.
struct ExpertMatmuls {
  MatmulInstruction in, out;
};
ExpertMatmuls expert_matmuls(const ExpertOps& e, int stage_slices);

}  // namespace sluice::cuda
