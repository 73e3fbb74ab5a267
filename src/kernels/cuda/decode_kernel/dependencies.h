// The dependency pass of the persistent decode kernel (builder.h): how instructions get each other's results. A matmul
// or an attention that reads the result of the instruction right before it reads it from an Exchange, element by
// element, without a grid barrier. Successive matmuls that accumulate to the same tensor need no barrier either, as
// each block adds to elements that it alone has. All other results are plain tensors. Instructions that would conflict
// over them (effects.h) get a grid barrier between them.
//
// Why a block may overwrite an Exchange: an instruction without a barrier before it reads *all* results of the one
// before. So its own results show that every block has finished what came before that one. kExchanges instructions
// later nobody reads an Exchange any more. For the same reason, memory that was read kDone instructions ago may be
// written without a barrier in between.
#pragma once

#include <vector>

#include "kernels/cuda/decode_kernel/instructions.h"

namespace sluice::cuda {

inline constexpr int kExchanges = 8, kDone = 3;

struct DecodeKernelPlan {
  std::vector<Instruction> instructions;
  size_t exchange_words = 0;  // of one Exchange
};

// Resolves `run` as it was captured: no instruction of it has a barrier or an Exchange yet. place_exchanges() sets the
// addresses of the Exchanges.
DecodeKernelPlan resolve_dependencies(const std::vector<Instruction>& run);
// Sets the addresses of the Exchanges of `plan`. `memory` is kExchanges * exchange_words words, which are zeros or were
// written by earlier steps.
void place_exchanges(DecodeKernelPlan& plan, uint2* memory);

}  // namespace sluice::cuda
