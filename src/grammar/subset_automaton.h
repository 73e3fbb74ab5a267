// A deterministic automaton over bytes, built while it is used: its states are sets of states of one or several
// nondeterministic automata, each of which has a tag.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/interner.h"

namespace sluice::grammar {

class SubsetAutomaton {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;
  using Row = std::array<uint32_t, 256>;

  // The tag of languages[i] is i.
  explicit SubsetAutomaton(std::vector<Automaton> languages);

  // State 0 is the start. A state stays valid; `row` returns the next state by byte, kDead if no text goes on with it.
  const Row& row(uint32_t state);
  // The states of all languages that a state stands for; those of the first language count from 0.
  std::span<const uint32_t> members(uint32_t state) const { return sets_[state]; }
  // Tags of the languages that have the text so far, and of those that have a text that begins with it; ascending.
  std::span<const uint32_t> accepted(uint32_t state) const { return states_[state].accepted; }
  std::span<const uint32_t> alive(uint32_t state) const { return states_[state].alive; }
  // Whether any plain text (see PlainText) may follow in one of the languages for which `allowed(tag)` is true. May be
  // false although several languages together have all of it.
  template <class Allowed>
  bool any_text_follows(uint32_t state, Allowed allowed) {
    for (const uint32_t member : sets_[state]) {
      const size_t tag = tag_of(member);
      if (bounded_[tag] || !allowed(static_cast<uint32_t>(tag))) continue;
      if (begins_any_text(member)) return true;
    }
    return false;
  }
  // Whether no byte may follow.
  bool final_only(uint32_t state) { return states_[state].leaf; }
  size_t bytes() const { return bytes_ + sets_.bytes(); }

 private:
  struct State {
    std::vector<uint32_t> accepted, alive;
    std::unique_ptr<Row> row;
    bool leaf = false;
  };

  uint32_t state_of(std::vector<uint32_t>& set);
  size_t tag_of(uint32_t state) const { return tags_[state]; }
  bool begins_any_text(uint32_t member);

  std::vector<Automaton> languages_;
  std::vector<uint32_t> first_;  // number of each language's state 0 among the states of all
  std::vector<uint32_t> tags_;   // by state among those of all languages
  std::vector<bool> bounded_;    // by language: no text of it has more bytes than it has states
  Interner sets_;
  std::vector<State> states_;
  std::vector<std::vector<bool>> free_;  // by language: its states that any plain text may follow
  size_t bytes_ = 0;
};

}  // namespace sluice::grammar
