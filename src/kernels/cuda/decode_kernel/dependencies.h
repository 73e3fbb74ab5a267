// How the instructions of a program (decode_kernel/builder.h) get at each other's results. A product or an attention
// that takes the results of the instruction right before it takes them from an Exchange, piece by piece, without
// waiting for all blocks. What products accumulate to one after the other stays with the blocks that have it, which are
// the same for all of them. All else is written and read as plain tensors, and instructions between which that would go
// wrong have a meeting of all blocks between them.
//
// That a block may overwrite an Exchange follows from this: an instruction without a meeting takes *all* results of the
// one before, so that what it puts shows that every block is done with what came before that one. kExchanges
// instructions later nobody reads an Exchange any more. In the same way what was read kDone instructions ago, with no
// meeting since, may be written.
#pragma once

#include <vector>

#include "kernels/cuda/decode_kernel/builder.h"

namespace sluice::cuda {

inline constexpr int kExchanges = 8, kDone = 3;

struct DecodeKernelPlan {
  std::vector<Instruction> instructions;
  size_t exchange_words = 0;  // of one Exchange
};

// `run` as it was recorded, in which no instruction meets or puts. Exchanges get their addresses from
// place_exchanges().
DecodeKernelPlan resolve_dependencies(const std::vector<Instruction>& run);
// Of wire()'s program: Exchanges lie in `memory`, kExchanges * exchange_words words of zeros or of older steps.
void place_exchanges(DecodeKernelPlan& plan, uint2* memory);

}  // namespace sluice::cuda
