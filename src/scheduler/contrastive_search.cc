// Scores of candidates.
#include "scheduler/contrastive_search.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {

ContrastiveSearch::ContrastiveSearch(double alpha, int width) : alpha_(alpha), computed_(static_cast<size_t>(width)) {}

bool ContrastiveSearch::put(int slot, Computed computed) {
  CHECK(!known(slot), "the candidate in slot {} was computed twice", slot);
  computed_[static_cast<size_t>(slot)] = std::move(computed);
  return std::ranges::count_if(computed_, [](const auto& one) { return one.has_value(); }) == slots();
}

int ContrastiveSearch::choose() const {
  const auto score = [&](size_t slot) {
    return (1 - alpha_) * candidates_[slot].probability - alpha_ * double{computed_[slot]->similarity};
  };
  size_t best = 0;
  for (size_t slot = 1; slot < candidates_.size(); ++slot) best = score(slot) > score(best) ? slot : best;
  return static_cast<int>(best);
}

std::span<const TokenCandidate> ContrastiveSearch::advance(int slot) {
  Computed chosen = *std::exchange(computed_[static_cast<size_t>(slot)], std::nullopt);
  for (std::optional<Computed>& one : computed_) one.reset();
  candidates_ = std::move(chosen.next);
  top_ = std::move(chosen.top);
  return candidates_;
}

}  // namespace sluice
