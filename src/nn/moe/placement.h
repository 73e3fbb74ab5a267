// Where the experts of a layer are, if ranks have whole experts: the load balancer of expert parallelism that
// DeepSeek-V3 describes (arXiv:2412.19437, section 3.4). A physical expert is a copy of
// an expert on a rank. All ranks have equally many. An expert has one or more; those after the first one are redundant.
// These are pure functions: every rank gets the same result.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice {

struct ExpertPlacement {
  int ranks = 1;
  std::vector<int32_t> experts{};  // of each physical expert; those of rank r follow those of rank r - 1

  int per_rank() const { return static_cast<int>(experts.size()) / ranks; }
  std::span<const int32_t> on(int rank) const {
    return std::span(experts).subspan(static_cast<size_t>(rank) * static_cast<size_t>(per_rank()),
                                      static_cast<size_t>(per_rank()));
  }
  bool operator==(const ExpertPlacement&) const = default;
};

// The most redundant experts that are of use: then every rank has every expert.
constexpr int64_t most_redundant(int64_t experts, int64_t ranks) { return experts * (ranks - 1); }

// Makes redundant experts of those with the most load per physical one. Then places the heaviest first, each on the
// rank with the least load. Exchanges experts then as long as that lowers the largest load of a rank. An expert is
// never on a rank twice. Without redundant experts, and if that is as good, experts stay in order. `load`: tokens of
// each expert. Requires physical % ranks == 0 and load.size() <= physical <= load.size() * ranks.
ExpertPlacement balanced_placement(std::span<const int64_t> load, int physical, int ranks);

// The load of each rank. The physical experts of an expert share its load evenly.
std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const int64_t> load);

// Numbers the ranks of `wanted` and the physical experts of each rank so that many are what they are in `now`.
ExpertPlacement with_few_moves(const ExpertPlacement& wanted, const ExpertPlacement& now);

// Says what is wrong with a placement of so many experts: one is on no rank, on a rank twice, or unknown. Empty:
// nothing.
std::string placement_problem(const ExpertPlacement& placement, int experts);

}  // namespace sluice
