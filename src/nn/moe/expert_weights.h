// Finds the matrices of experts in a checkpoint, in every published layout.
#pragma once

#include <optional>
#include <vector>

#include "nn/moe/moe.h"

namespace sluice {

// What a rank has of the experts.
struct ExpertPart {
  std::vector<int32_t> experts;  // in the order of its matrices
  RowRange inner;                // of their inner width
};

ExpertPart all_experts(const MoeSpec& spec);

// This rank's part: some of the experts (LoadContext::expert_parallel), or some of the inner width of all. nullopt: all
// of them, as there is one rank or the experts cannot be divided.
std::optional<ExpertPart> expert_part(const Weights& w, const MoeSpec& spec);

// Plans and, unless dry, packs `in` [experts, gate rows and up rows, hidden] and `out` [experts, hidden, inner] with
// their biases. With a part of them, results are summands of the ranks.
void load_experts(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, ExpertMatrices& into);

// Packs other experts into some matrices of those that load_experts made: `experts` are all that this rank has then,
// and `changed` the matrices that get another one.
void load_experts_again(const Weights& w, const MoeSpec& spec, int hidden, const std::vector<int32_t>& experts,
                        const std::vector<int>& changed, ExpertMatrices& into);

}  // namespace sluice
