// A regular language of texts that consist of units, such as the characters of a JSON string, with a bound on their
// number. The bound is a counter: it costs no states, unlike the product with an automaton that counts.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automaton.h"

namespace sluice::grammar {

struct CountedText {
  Automaton language;              // without the bound
  int most = 0;                    // units
  std::vector<uint8_t> ends_unit;  // [states] whether a unit ends where the state is entered
  std::vector<int32_t> least;      // [states] the fewest units that end on the way to an accepting state
  int32_t most_left = 0;           // the greatest of these
};

// What is between the quotes of the JSON strings (json_string_body) whose decoded text is in `utf8` and has at most
// `most` characters.
CountedText counted_json_string(const Automaton& utf8, int most, Budget& budget);

}  // namespace sluice::grammar
