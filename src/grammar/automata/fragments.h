// Regular expressions to automata without empty transitions, as Glushkov's construction does: a fragment knows the
// edges by which it is entered and the states in which it may end.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automata/maker.h"

namespace sluice::grammar {

// The states and transitions of a fragment are consecutive in its Fragments, so that a copy is one pass.
struct Fragment {
  std::vector<Automaton::Edge> first{};  // into the fragment
  std::vector<int32_t> last{};           // states where it may end
  bool nullable = false;                 // contains the empty text
  bool loops = false;                    // its ends lead to its beginning
  int32_t state = 0, states = 0;         // its first state, and how many it has
  size_t transition = 0, transitions = 0;
};

// Makes fragments of one automaton. Each fragment is used once, and right after the one that was made before it: the
// operands of concatenate and unite are the latest two.
class Fragments {
 public:
  explicit Fragments(Budget& budget);

  Fragment none() const;
  Fragment empty_text() const;
  Fragment bytes(uint8_t first, uint8_t last);
  Fragment literal(std::string_view bytes);
  Fragment import(const Automaton& automaton);
  Fragment concatenate(Fragment a, Fragment b);
  Fragment unite(Fragment a, Fragment b);
  Fragment repeat(Fragment a, int least, int most);  // most < 0: no limit

  Automaton finish(const Fragment& whole);

  Budget& budget() const { return maker_.budget(); }

 private:
  Fragment begin() const;
  void end(Fragment& fragment) const;  // it takes all since begin()
  Fragment copy(const Fragment& fragment);
  void connect(const std::vector<int32_t>& last, const std::vector<Automaton::Edge>& first);

  AutomatonMaker maker_;
};

}  // namespace sluice::grammar
