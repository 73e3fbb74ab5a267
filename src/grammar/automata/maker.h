// The data of an automaton and how it is made from states and transitions.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automaton.h"

namespace sluice::grammar {

struct Automaton::Data {
  std::vector<int32_t> begin;      // the edges of state s are edges[begin[s]] .. edges[begin[s + 1] - 1]
  std::vector<Edge> edges;         // of one state: by first byte, none twice
  std::vector<uint8_t> accepting;  // per state
};

struct Transition {
  int32_t from = 0;
  Automaton::Edge edge;
};

class AutomatonMaker {
 public:
  using Edge = Automaton::Edge;

  explicit AutomatonMaker(Budget& budget) : budget_(budget) {}
  AutomatonMaker(const AutomatonMaker&) = delete;
  ~AutomatonMaker() { budget_.release(allocated_); }

  // The first state is the start.
  int32_t add_state(bool accepting = false) { return add_states(1, accepting); }
  int32_t add_states(int32_t count, bool accepting = false);  // returns the first of them
  void add_edge(int32_t from, Edge edge) {
    if (transitions_.size() == paid_) pay();
    transitions_.push_back({from, edge});
  }
  void accept(int32_t state) { accepting_[static_cast<size_t>(state)] = 1; }

  int32_t states() const { return static_cast<int32_t>(accepting_.size()); }
  const std::vector<Transition>& transitions() const { return transitions_; }
  Budget& budget() const { return budget_; }

  // Leaves out useless states and transitions that others cover.
  Automaton finish() const;

 private:
  void pay();  // for more transitions, before they are made

  Budget& budget_;
  std::vector<Transition> transitions_;
  std::vector<uint8_t> accepting_;
  size_t paid_ = 0;        // transitions
  int64_t allocated_ = 0;  // bytes
};

}  // namespace sluice::grammar
