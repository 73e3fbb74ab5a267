// Finds the matrices of experts in a checkpoint, in every published layout.
#pragma once

#include <optional>

#include "nn/moe/moe.h"

namespace sluice {

// This rank's part of every expert's inner width; nullopt: all of it.
std::optional<RowRange> expert_part(const Weights& w, const MoeSpec& spec);

// Plans and, unless dry, packs `in` [experts, gate rows and up rows, hidden] and `out` [experts, hidden, inner] with
// their biases. With a part of the inner width, results are summands of the ranks.
void load_experts(const Weights& w, const MoeSpec& spec, int hidden, const std::optional<RowRange>& part,
                  StackedLinear& in, StackedLinear& out);

}  // namespace sluice
