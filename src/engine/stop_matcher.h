// Finds stop strings in text that arrives in pieces, with the automaton of Aho and Corasick ("Efficient string
// matching: an aid to bibliographic search", 1975). Work per byte does not depend on how many strings there are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sluice/shared_list.h"

namespace sluice {

// The automaton of a set of strings. Immutable: all choices of all prompts of a request share one.
// Memory: 17 bytes per byte of the strings.
class StopAutomaton {
 public:
  using State = uint32_t;  // a prefix of a stop string; 0: the empty one

  explicit StopAutomaton(SharedList<std::string> stops);  // empty strings never match

  // The longest suffix of "prefix of `state`, then `byte`" that is a prefix of a stop string.
  State next(State state, unsigned char byte) const;
  // Bytes of the prefix.
  size_t depth(State state) const { return depth_[state]; }
  // The longest stop string that the prefix ends with; null if there is none.
  const std::string* match(State state) const { return match_[state] < 0 ? nullptr : &stops_[match_[state]]; }

 private:
  State child(State state, unsigned char byte) const;  // 0: none

  const SharedList<std::string> stops_;
  // Per state. States are numbered breadth-first with siblings in order of their bytes, so that the children of a state
  // are the states from first_child_[state] to first_child_[state + 1] - 1.
  std::vector<State> first_child_;
  std::vector<unsigned char> byte_;  // last byte of the prefix
  std::vector<State> fallback_;      // longest proper suffix that is a prefix of a stop string
  std::vector<uint32_t> depth_;
  std::vector<int32_t> match_;     // index into stops_, or -1
  std::array<State, 256> root_{};  // children of state 0 by byte
};

// Automata of the requests that are running. Thread-safe.
class StopAutomata {
 public:
  // The automaton of the list, shared by all copies of it; null for an empty list.
  std::shared_ptr<const StopAutomaton> get(const SharedList<std::string>& stops);

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::weak_ptr<const StopAutomaton>> known_;  // by SharedList::identity()
};

// The state of one choice. Text that may be the beginning of a stop string is held back until that is decided.
class StopMatcher {
 public:
  // A null automaton never matches. With `include`, the stop string itself stays in the text.
  StopMatcher(std::shared_ptr<const StopAutomaton> automaton, bool include)
      : automaton_(std::move(automaton)), include_(include) {}

  // The text that is safe to show after `piece`. Once matched(), further text is dropped. With `armed` false the piece
  // passes through and no match can begin in it (min_tokens).
  std::string push(std::string_view piece, bool armed = true);
  // What was held back when the text ended without a match.
  std::string finish();
  bool matched() const { return match_ != nullptr; }
  const std::string& match() const { return *match_; }  // only if matched()

 private:
  std::shared_ptr<const StopAutomaton> automaton_;
  bool include_;
  StopAutomaton::State state_ = 0;
  std::string held_;
  const std::string* match_ = nullptr;  // in the automaton
};

}  // namespace sluice
