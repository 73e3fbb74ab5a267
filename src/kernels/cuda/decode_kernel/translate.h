// Makes instructions of the persistent decode kernel from captured ops. An instruction stands for one op or for a
// pattern of consecutive ops: a matmul with the gate or the sum over ranks behind it, attention with the head norms and
// the rotation before it, experts from routing to their sum. Needs no device.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/decode_kernel/captured_op.h"

namespace sluice::cuda {

// The types that select a kernel; null: any type will do.
struct KernelTypes {
  DType plain = nullptr, quantized = nullptr;
};
// Returns null if no kernel has both types.
const DecodeKernel* decode_kernel(const KernelTypes& types);

// Weights that a matmul reads through tensor maps.
struct MappedWeight {
  const std::byte* weight;
  DType type;
  int64_t n, k;
};

// Consecutive ops as instructions of one launch.
struct DecodeRun {
  size_t ops = 0;                         // how many ops these are
  std::vector<Instruction> instructions;  // without barriers, Exchanges (dependencies.h) and tensor maps
  std::vector<MappedWeight> mapped;       // for each matmul without panels, in order
  KernelTypes types;
  int scratch_bytes = 0, matmuls = 0, sums = 0;
  const PeerMemory* peers = nullptr;  // the ranks that the sums are over
};

// Translates ops from the first one on, up to one that the kernel cannot execute in the same launch, and to at most
// `room` instructions. Of `l` it uses the numbers of SMs and of bytes, and the addresses of the workspace.
DecodeRun translate(std::span<const CapturedOp> ops, const Launch& l, size_t room);

}  // namespace sluice::cuda
