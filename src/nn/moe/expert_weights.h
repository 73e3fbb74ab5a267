// Finds the matrices of experts in a checkpoint, in every published layout.
#pragma once

#include "nn/moe/moe.h"

namespace sluice {

// Plans and, unless dry, packs `in` [experts, gate rows and up rows, hidden] and `out` [experts, hidden, inner] with
// their biases.
void load_experts(const Weights& w, const MoeSpec& spec, int hidden, StackedLinear& in, StackedLinear& out);

}  // namespace sluice
