// The shared memory of a block of the persistent decode kernel, and which parts of a matmul are its own.
#pragma once

#include "kernels/cuda/decode_kernel/attention.cuh"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/weights.cuh"

namespace sluice::cuda::persistent {

inline constexpr int kThreads = kMathWarps * kWarp;  // threads that compute
inline constexpr int kDecodeThreads = kThreads + (kEpilogueWarps + kProducerWarps) * kWarp;
inline constexpr int kRingAlign = 1024;
inline constexpr int kSumsPitch = kMostDecodeKernelRows + 1;
inline constexpr int kSums = kMathWarps * kPanelOutputs * kSumsPitch;  // floats

// The units of a matmul that this block computes: its block index and every gridDim.x-th one from there, below `count`.
// A unit of a gated matmul is two panels, `unit` and `unit + of_matrix`. The last blocks may have one unit less of
// every matmul, so attention starts with them. ExpertPart::kIn has the units of all choices, `of_matrix` each. A unit
// of ExpertPart::kOut is one panel for each row, each with other weights.
struct Units {
  int first, count, panels, of_matrix;
  __device__ explicit Units(const MatmulInstruction& p) {
    const int all = (p.n + kPanelOutputs - 1) / kPanelOutputs, gated = p.gated != nullptr ? 1 : 0;
    panels = 1 + gated;
    of_matrix = all >> gated;
    count = of_matrix;
    if (p.experts.part == ExpertPart::kIn) count *= p.rows * p.experts.choice.top_k;
    if (p.experts.part == ExpertPart::kOut) panels = p.rows;
    first = static_cast<int>(blockIdx.x);
  }
  __device__ bool any() const { return first < count; }
};

// The shared memory of a block.
struct Memory {
  std::byte *ring, *scratch;
  float* sums;         // [kDecodeSums][kSums]
  float* squares;      // [kMostDecodeKernelRows][kMathWarps], sums of squares of the inputs
  Instruction* slots;  // [2]: the current instruction and the next one
  Instruction* fed;    // [kProducerWarps][2]: the same for each producer warp
  UnitPlace* places;   // [kMostPlaces]
  Choice* choices;     // [kEpilogueWarps + kProducerWarps][kMostChoices], row by row
};

// The inputs of a matmul lie at the start of the scratch.
__device__ inline Inputs inputs_of(const MatmulInstruction& p, const Memory& memory) {
  return {memory.scratch, p.rows, p.slices};
}

}  // namespace sluice::cuda::persistent
