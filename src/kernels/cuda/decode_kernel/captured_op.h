// Ops of a graph that is being captured, as values: what each op computes, with its arguments, and how it is launched
// by itself. The persistent decode kernel is a pass over them (translate.h).
#pragma once

#include <functional>
#include <variant>

#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/decode_kernel/instructions.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// The arguments of ops whose launches take no struct. Indices are in device memory. A struct may serve several ops.
struct GatherOp {  // ops::embed and ops::gather_rows
  Tensor out, table;
  const int32_t* ids;
};
struct NormOp {  // ops::rms_norm
  Tensor out, x;
  const float* weight;
  float eps, offset;
};
struct GluOp {  // ops::glu and ops::clamped_glu
  Tensor out, gate_up;
  Gate gate;
};
struct RopeOp {  // ops::rope_store without head norms, which are ops of their own
  ops::RopeStoreArgs args;
  const int32_t *positions, *slots;
};
struct AttentionOp {
  ops::AttentionArgs args;
  AttentionIndices at;
};
struct SumOp {  // ops::all_reduce
  const PeerMemory* peers;
  Tensor out, x;
  bool accumulate;
};

// What the kernel may execute: the op, by the type of its arguments. std::monostate: an op that it cannot execute.
// A MatmulProblem is ops::matmul, or ops::expert_matmul if it has `starts`.
using OpDescription = std::variant<std::monostate, GatherOp, NormOp, MatmulProblem, GluOp, RopeOp, AttentionOp,
                                   ops::RouteArgs, ops::GroupByExpertArgs, ops::CombineArgs, SumOp>;

struct CapturedOp {
  OpDescription description;
  std::function<void(const Launch&)> launch;
  // If there is a kernel for this op together with the ones behind it, `fused_ops` in all: launches that kernel.
  // Returns false, and does nothing, if it does not support their sizes.
  size_t fused_ops = 1;
  std::function<bool(const Launch&)> launch_fused = nullptr;
};

}  // namespace sluice::cuda
