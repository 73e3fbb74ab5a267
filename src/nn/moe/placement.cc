// Replicates experts greedily, packs them onto ranks, and improves the result by exchanges.
#include "nn/moe/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }

std::vector<int> copies_of_each(std::span<const int64_t> load, int physical, int ranks) {
  std::vector<int> count(load.size(), 1);
  for (int64_t left = physical - static_cast<int64_t>(load.size()); left > 0; --left) {
    std::optional<size_t> best;
    for (size_t e = 0; e < load.size(); ++e) {
      if (count[e] == ranks) continue;
      // compares load / count without rounding
      const int64_t mine = best ? load[e] * count[*best] : 0, other = best ? load[*best] * count[e] : 0;
      if (!best || mine > other || (mine == other && count[e] < count[*best])) best = e;
    }
    CHECK(best.has_value(), "{} physical experts of {} on {} ranks", physical, load.size(), ranks);
    ++count[*best];
  }
  return count;
}

// Ranks that are being filled.
class Packing {
 public:
  Packing(std::span<const int64_t> load, int physical, int ranks)
      : count_(copies_of_each(load, physical, ranks)),
        per_rank_(at(physical / ranks)),
        on_(at(ranks)),
        loads_(at(ranks), 0.0),
        holds_(at(ranks), std::vector<char>(load.size(), 0)) {
    for (size_t e = 0; e < load.size(); ++e) weight_.push_back(static_cast<double>(load[e]) / count_[e]);
  }

  void fill() {
    std::vector<int32_t> order(weight_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return weight_[at(a)] > weight_[at(b)]; });
    for (const int32_t e : order) {
      for (int i = 0; i < count_[at(e)]; ++i) place(e);
    }
  }

  // Exchanges an expert of the rank with the largest load for one of another rank while that lowers the larger load of
  // both.
  void improve() {
    for (size_t left = 2 * per_rank_ * on_.size(); left > 0 && exchange(); --left) {
    }
  }

  ExpertPlacement result() const {
    ExpertPlacement out{.ranks = static_cast<int>(on_.size())};
    for (std::vector<int32_t> rank : on_) {
      std::ranges::sort(rank);
      out.experts.insert(out.experts.end(), rank.begin(), rank.end());
    }
    return out;
  }

 private:
  bool has_room(size_t rank) const { return on_[rank].size() < per_rank_; }

  void put(size_t rank, int32_t e) {
    on_[rank].push_back(e);
    holds_[rank][at(e)] = 1;
    loads_[rank] += weight_[at(e)];
  }

  void take(size_t rank, int32_t e) {
    on_[rank].erase(std::ranges::find(on_[rank], e));
    holds_[rank][at(e)] = 0;
    loads_[rank] -= weight_[at(e)];
  }

  void place(int32_t e) {
    std::optional<size_t> best;
    for (size_t r = 0; r < on_.size(); ++r) {
      if (has_room(r) && holds_[r][at(e)] == 0 && (!best || loads_[r] < loads_[*best])) best = r;
    }
    if (best) return put(*best, e);
    make_room(e);
  }

  // All ranks with room have the expert. A full rank without it has some expert that a rank with room has not, since it
  // has more of them.
  void make_room(int32_t e) {
    size_t open = 0, full = 0;
    while (!has_room(open)) ++open;
    while (holds_[full][at(e)] != 0) ++full;
    const auto moved = std::ranges::find_if(on_[full], [&](int32_t other) { return holds_[open][at(other)] == 0; });
    CHECK(moved != on_[full].end(), "expert {} is on no rank", e);
    const int32_t other = *moved;
    take(full, other), put(open, other), put(full, e);
  }

  bool exchange() {
    const size_t from = at(std::ranges::max_element(loads_) - loads_.begin());
    double best = loads_[from];
    std::optional<std::pair<int32_t, int32_t>> exchanged;
    size_t to = 0;
    for (size_t r = 0; r < on_.size(); ++r) {
      if (r == from) continue;
      for (const int32_t mine : on_[from]) {
        if (holds_[r][at(mine)] != 0) continue;
        for (const int32_t other : on_[r]) {
          if (holds_[from][at(other)] != 0) continue;
          const double change = weight_[at(mine)] - weight_[at(other)];
          const double larger = std::max(loads_[from] - change, loads_[r] + change);
          if (larger < best * (1 - 1e-9)) best = larger, exchanged = {mine, other}, to = r;
        }
      }
    }
    if (!exchanged) return false;
    const auto [mine, other] = *exchanged;
    take(from, mine), take(to, other), put(from, other), put(to, mine);
    return true;
  }

  std::vector<int> count_;      // physical experts of each expert
  std::vector<double> weight_;  // load of each of them
  size_t per_rank_;
  std::vector<std::vector<int32_t>> on_;  // the experts on each rank
  std::vector<double> loads_;
  std::vector<std::vector<char>> holds_;  // [rank][expert]
};

double largest(const ExpertPlacement& placement, std::span<const int64_t> load) {
  return std::ranges::max(rank_loads(placement, load));
}

}  // namespace

ExpertPlacement balanced_placement(std::span<const int64_t> load, int physical, int ranks) {
  const auto experts = static_cast<int64_t>(load.size());
  CHECK(physical % ranks == 0 && experts <= physical && physical <= experts * ranks,
        "{} physical experts of {} on {} ranks", physical, experts, ranks);
  Packing packing(load, physical, ranks);
  packing.fill();
  packing.improve();
  ExpertPlacement out = packing.result();
  if (physical != experts) return out;
  ExpertPlacement in_order{.ranks = ranks, .experts = std::vector<int32_t>(load.size())};
  std::iota(in_order.experts.begin(), in_order.experts.end(), 0);
  return largest(out, load) < largest(in_order, load) ? out : in_order;
}

std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const int64_t> load) {
  std::vector<int> count(load.size(), 0);
  for (const int32_t e : placement.experts) ++count[at(e)];
  std::vector<double> out(at(placement.ranks), 0.0);
  for (int r = 0; r < placement.ranks; ++r) {
    for (const int32_t e : placement.on(r)) out[at(r)] += static_cast<double>(load[at(e)]) / count[at(e)];
  }
  return out;
}

ExpertPlacement with_few_moves(const ExpertPlacement& wanted, const ExpertPlacement& now) {
  CHECK(wanted.ranks == now.ranks && wanted.experts.size() == now.experts.size());
  ExpertPlacement out = now;
  std::vector<int> free;  // ranks of `now` that have no new experts yet
  for (int r = 0; r < now.ranks; ++r) free.push_back(r);
  for (int r = 0; r < wanted.ranks; ++r) {
    const auto has = [](std::span<const int32_t> list, int32_t e) { return std::ranges::find(list, e) != list.end(); };
    const std::span<const int32_t> experts = wanted.on(r);
    const auto stay = [&](int rank) {
      return std::ranges::count_if(now.on(rank), [&](int32_t e) { return has(experts, e); });
    };
    const auto best = std::ranges::max_element(free, {}, stay);
    const int rank = *best;
    free.erase(best);
    std::vector<int32_t> come;
    for (const int32_t e : experts) {
      if (!has(now.on(rank), e)) come.push_back(e);
    }
    for (int i = 0; i < now.per_rank(); ++i) {
      int32_t& place = out.experts[at(rank * now.per_rank() + i)];
      if (has(experts, place)) continue;
      place = come.back();
      come.pop_back();
    }
  }
  return out;
}

std::string placement_problem(const ExpertPlacement& placement, int experts) {
  std::vector<char> placed(at(experts), 0);
  for (int r = 0; r < placement.ranks; ++r) {
    std::vector<char> here(at(experts), 0);
    for (const int32_t e : placement.on(r)) {
      if (e < 0 || e >= experts) return fmt::format("there is no expert {} (expected 0 to {})", e, experts - 1);
      if (here[at(e)] != 0) return fmt::format("expert {} is on rank {} twice", e, r);
      here[at(e)] = placed[at(e)] = 1;
    }
  }
  const auto missing = std::ranges::find(placed, 0);
  return missing == placed.end() ? "" : fmt::format("expert {} is on no rank", missing - placed.begin());
}

}  // namespace sluice
