// Finds the matrices of experts in a checkpoint, in every published layout.
#pragma once

#include <optional>

#include "nn/moe/moe.h"

namespace sluice {

// What a rank has of the experts.
struct ExpertPart {
  RowRange experts;
  RowRange inner;  // of their inner width
};

// This rank's part: some of the experts (LoadContext::expert_parallel), or some of the inner width of all. nullopt: all
// of them, as there is one rank or the experts cannot be divided.
std::optional<ExpertPart> expert_part(const Weights& w, const MoeSpec& spec);

// Plans and, unless dry, packs `in` [experts, gate rows and up rows, hidden] and `out` [experts, hidden, inner] with
// their biases. With a part, results are summands of the ranks.
void load_experts(const Weights& w, const MoeSpec& spec, int hidden, const std::optional<ExpertPart>& part,
                  StackedLinear& in, StackedLinear& out);

}  // namespace sluice
