#include "grammar/subset_automaton.h"

#include <algorithm>

#include "grammar/plain_states.h"

namespace sluice::grammar {
namespace {

// Whether every edge leads to a state of a higher number.
bool only_forward(const Automaton& language) {
  for (int state = 0; state < language.states(); ++state) {
    for (const Automaton::Edge& e : language.edges(state)) {
      if (e.to <= state) return false;
    }
  }
  return true;
}

}  // namespace

SubsetAutomaton::SubsetAutomaton(std::vector<Automaton> languages) : languages_(std::move(languages)) {
  uint32_t states = 0;
  std::vector<uint32_t> start;
  for (const Automaton& language : languages_) {
    first_.push_back(states);
    if (!language.empty()) start.push_back(states);
    states += static_cast<uint32_t>(language.states());
    tags_.resize(states, static_cast<uint32_t>(bounded_.size()));
    bounded_.push_back(only_forward(language));
  }
  bytes_ += tags_.size() * sizeof(uint32_t);
  state_of(start);
}

uint32_t SubsetAutomaton::state_of(std::vector<uint32_t>& set) {
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  const uint32_t id = sets_.add(set);
  if (id < states_.size()) return id;
  State state;
  state.leaf = true;
  for (const uint32_t member : set) {
    const size_t tag = tag_of(member);
    const int local = static_cast<int>(member - first_[tag]);
    if (state.alive.empty() || state.alive.back() != tag) state.alive.push_back(static_cast<uint32_t>(tag));
    if (languages_[tag].accepts(local) && (state.accepted.empty() || state.accepted.back() != tag)) {
      state.accepted.push_back(static_cast<uint32_t>(tag));
    }
    if (!languages_[tag].edges(local).empty()) state.leaf = false;
  }
  bytes_ += sizeof(State) + (state.alive.capacity() + state.accepted.capacity()) * sizeof(uint32_t);
  states_.push_back(std::move(state));
  return id;
}

bool SubsetAutomaton::begins_any_text(uint32_t member) {
  const size_t tag = tag_of(member);
  free_.resize(languages_.size());
  if (free_[tag].empty()) {
    free_[tag] = states_before_any_text(languages_[tag]);
    bytes_ += free_[tag].size() / 8;
  }
  return free_[tag][member - first_[tag]];
}

const SubsetAutomaton::Row& SubsetAutomaton::row(uint32_t state) {
  if (states_[state].row) return *states_[state].row;
  struct Edge {
    uint8_t first, last;
    uint32_t to;
  };
  std::vector<Edge> edges;
  std::array<bool, 257> bounds{};  // bytes at which the set of targets may change
  for (const uint32_t member : sets_[state]) {
    const size_t tag = tag_of(member);
    for (const Automaton::Edge& e : languages_[tag].edges(static_cast<int>(member - first_[tag]))) {
      edges.push_back({e.first, e.last, first_[tag] + static_cast<uint32_t>(e.to)});
      bounds[e.first] = bounds[e.last + 1] = true;
    }
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.first < b.first; });
  auto row = std::make_unique<Row>();
  row->fill(kDead);
  std::vector<Edge> open;
  std::vector<uint32_t> set;
  size_t next = 0;
  for (int begin = 0; begin < 256;) {
    int end = begin + 1;
    while (end < 256 && !bounds[static_cast<size_t>(end)]) ++end;
    std::erase_if(open, [&](const Edge& e) { return e.last < begin; });
    for (; next < edges.size() && edges[next].first <= begin; ++next) open.push_back(edges[next]);
    if (!open.empty()) {
      set.clear();
      for (const Edge& e : open) set.push_back(e.to);
      const uint32_t to = state_of(set);
      std::fill(row->begin() + begin, row->begin() + end, to);
    }
    begin = end;
  }
  bytes_ += sizeof(Row);
  states_[state].row = std::move(row);
  return *states_[state].row;
}

}  // namespace sluice::grammar
