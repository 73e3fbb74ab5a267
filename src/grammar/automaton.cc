#include "grammar/automaton.h"

#include <algorithm>

#include "grammar/automata/fragments.h"
#include "grammar/subset_automaton.h"

namespace sluice::grammar {
namespace {

// Without limits: for languages whose size the caller has in hand.
Budget unlimited() { return Budget({.fuel = INT64_MAX / 2, .bytes = INT64_MAX / 2, .time = std::chrono::hours(24)}); }

}  // namespace

Automaton Automaton::none() {
  Budget budget = unlimited();
  Fragments fragments(budget);
  return fragments.finish(fragments.none());
}

Automaton Automaton::literal(std::string_view bytes) {
  Budget budget = unlimited();
  Fragments fragments(budget);
  return fragments.finish(fragments.literal(bytes));
}

Automaton Automaton::bytes(uint8_t first, uint8_t last) {
  Budget budget = unlimited();
  Fragments fragments(budget);
  return fragments.finish(fragments.bytes(first, last));
}

int Automaton::states() const { return static_cast<int>(data_->accepting.size()); }

std::span<const Automaton::Edge> Automaton::edges(int state) const {
  const auto s = static_cast<size_t>(state);
  return std::span(data_->edges)
      .subspan(static_cast<size_t>(data_->begin[s]), static_cast<size_t>(data_->begin[s + 1] - data_->begin[s]));
}

bool Automaton::accepts(int state) const { return data_->accepting[static_cast<size_t>(state)] != 0; }

bool Automaton::empty() const {
  return std::ranges::none_of(data_->accepting, [](uint8_t a) { return a != 0; });
}

bool Automaton::accepts_empty() const { return accepts(0); }

bool Automaton::matches(std::string_view text) const {
  SubsetAutomaton subsets({*this});
  uint32_t state = 0;
  for (const char c : text) {
    state = subsets.row(state)[static_cast<uint8_t>(c)];
    if (state == SubsetAutomaton::kDead) return false;
  }
  return !subsets.accepted(state).empty();
}

std::optional<std::vector<std::string>> Automaton::enumerate(size_t most, Budget& budget) const {
  SubsetAutomaton subsets({*this});
  struct Place {
    uint32_t state;
    int next;  // byte
  };
  std::vector<Place> path = {{0, 0}};
  std::vector<std::string> found;
  std::string text;
  if (accepts(0)) found.emplace_back();
  while (!path.empty() && found.size() <= most) {
    // A text longer than the number of states passes one of them twice: there are infinitely many.
    if (text.size() > static_cast<size_t>(states())) return std::nullopt;
    budget.step();
    Place& place = path.back();
    if (place.next == 256) {
      path.pop_back();
      if (!text.empty()) text.pop_back();
      continue;
    }
    const auto byte = static_cast<uint8_t>(place.next++);
    const uint32_t to = subsets.row(place.state)[byte];
    if (to == SubsetAutomaton::kDead) continue;
    text.push_back(static_cast<char>(byte));
    if (!subsets.accepted(to).empty()) found.push_back(text);
    path.push_back({to, 0});
  }
  if (found.size() > most) return std::nullopt;
  return found;
}

Automaton concatenate(const Automaton& a, const Automaton& b, Budget& budget) {
  Fragments fragments(budget);
  Fragment first = fragments.import(a), second = fragments.import(b);
  return fragments.finish(fragments.concatenate(std::move(first), std::move(second)));
}

Automaton unite(std::span<const Automaton> languages, Budget& budget) {
  Fragments fragments(budget);
  Fragment all = fragments.none();
  for (const Automaton& language : languages) all = fragments.unite(std::move(all), fragments.import(language));
  return fragments.finish(all);
}

Automaton repeat(const Automaton& a, int least, int most, Budget& budget) {
  Fragments fragments(budget);
  Fragment all = fragments.import(a);
  return fragments.finish(fragments.repeat(std::move(all), least, most));
}

}  // namespace sluice::grammar
