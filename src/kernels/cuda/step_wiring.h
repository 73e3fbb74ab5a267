// How the instructions of a program (step_program.h) get at each other's results. A product or an attention that takes
// the results of the instruction right before it takes them from an Exchange, word by word, without waiting for all
// blocks. All else is written and read as plain tensors, and instructions between which that would go wrong have a
// meeting of all blocks between them.
//
// That a block may overwrite an Exchange follows from this: an instruction without a meeting takes *all* results of the
// one before, so that what it puts shows that every block is done with what came before that one. kExchanges
// instructions later nobody reads an Exchange any more, since what is read is at most kOldest instructions old.
#pragma once

#include <vector>

#include "kernels/cuda/step_program.h"

namespace sluice::cuda {

inline constexpr int kExchanges = 8, kOldest = 5;
inline constexpr int64_t kMostNormed = 8192;  // inputs of a product that a norm becomes a part of

struct WiredProgram {
  std::vector<Instruction> instructions;
  size_t exchange_words = 0;  // of one Exchange
};

// `run` as it was recorded, in which no instruction meets or puts. Exchanges get their addresses from
// place_exchanges().
WiredProgram wire(const std::vector<Instruction>& run);
// Of wire()'s program: Exchanges lie in `memory`, kExchanges * exchange_words words of zeros or of older steps.
void place_exchanges(WiredProgram& program, uint2* memory);

}  // namespace sluice::cuda
