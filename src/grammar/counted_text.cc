#include "grammar/counted_text.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

namespace sluice::grammar {
namespace {

// Deterministic. State 0, and no other, is between two characters.
const Automaton& any_characters() {
  static const Automaton all = [] {
    Budget budget;
    return determinize(json_string_body(any_text(), budget), budget);
  }();
  return all;
}

int32_t after(const Automaton& deterministic, int32_t state, uint8_t byte) {
  for (const Automaton::Edge& e : deterministic.edges(state)) {
    if (e.first <= byte && byte <= e.last) return e.to;
  }
  return -1;
}

// Whether a character ends at each state. The language is a product with any_characters(), so that all texts which lead
// to a state are at the same place of a character.
std::vector<uint8_t> ends_of_characters(const Automaton& language, Budget& budget) {
  std::vector<int32_t> place(static_cast<size_t>(language.states()), -1);
  place[0] = 0;
  std::vector<int32_t> open = {0};
  while (!open.empty()) {
    const int32_t state = open.back();
    open.pop_back();
    for (const Automaton::Edge& e : language.edges(state)) {
      budget.step();
      int32_t& to = place[static_cast<size_t>(e.to)];
      if (to >= 0) continue;
      to = after(any_characters(), place[static_cast<size_t>(state)], e.first);
      open.push_back(e.to);
    }
  }
  std::vector<uint8_t> ends;
  for (const int32_t p : place) ends.push_back(p == 0 ? 1 : 0);
  return ends;
}

// Shortest paths to accepting states; an edge into the end of a unit has length 1, others 0.
std::vector<int32_t> fewest_units(const Automaton& language, const std::vector<uint8_t>& ends, Budget& budget) {
  const auto states = static_cast<size_t>(language.states());
  std::vector<std::vector<int32_t>> sources(states);
  std::vector<int32_t> least(states, std::numeric_limits<int32_t>::max());
  std::deque<std::pair<int32_t, int32_t>> open;  // states, and the lengths that they were reached with
  for (int32_t state = 0; state < language.states(); ++state) {
    for (const Automaton::Edge& e : language.edges(state)) sources[static_cast<size_t>(e.to)].push_back(state);
    if (!language.accepts(state)) continue;
    least[static_cast<size_t>(state)] = 0;
    open.emplace_back(state, 0);
  }
  while (!open.empty()) {
    const auto [state, length] = open.front();
    open.pop_front();
    if (length > least[static_cast<size_t>(state)]) continue;
    const int32_t step = ends[static_cast<size_t>(state)];
    for (const int32_t source : sources[static_cast<size_t>(state)]) {
      budget.step();
      if (length + step >= least[static_cast<size_t>(source)]) continue;
      least[static_cast<size_t>(source)] = length + step;
      if (step == 0) {
        open.emplace_front(source, length);
      } else {
        open.emplace_back(source, length + step);
      }
    }
  }
  return least;
}

}  // namespace

CountedText counted_json_string(const Automaton& utf8, int most, Budget& budget) {
  CountedText out{.language = intersect(json_string_body(utf8, budget), any_characters(), budget),
                  .most = most,
                  .ends_unit = {},
                  .least = {},
                  .most_left = 0};
  if (out.language.empty()) return out;
  budget.allocate(int64_t{out.language.states()} * 16);
  out.ends_unit = ends_of_characters(out.language, budget);
  out.least = fewest_units(out.language, out.ends_unit, budget);
  out.most_left = *std::max_element(out.least.begin(), out.least.end());
  return out;
}

}  // namespace sluice::grammar
