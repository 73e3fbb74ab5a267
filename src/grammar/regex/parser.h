// Regular expressions as trees.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/regex/char_set.h"

namespace sluice::grammar::regex {

struct Expression {
  enum class Kind {
    kSet,          // one character
    kSequence,     // of parts; none: the empty text
    kChoice,       // one of the parts
    kRepeat,       // part 0, `least` to `most` times; most < 0: no limit
    kBegin,        // here the text begins
    kEnd,          // here the text ends
    kBoundary,     // between a word character and another one, or an end of the text
    kNoBoundary,   // the opposite
    kLookahead,    // part 0 matches here
    kNoLookahead,  // part 0 does not match here
  };
  Kind kind = Kind::kSequence;
  CharSet set{};
  std::vector<Expression> parts{};
  int least = 0, most = 0;
  bool asserts = false;      // has an assertion about its surroundings
  bool looks_ahead = false;  // has a lookahead
};

// Throws GrammarError with the position of what is wrong.
Expression parse(std::string_view pattern, RegexSyntax syntax, Budget& budget);

}  // namespace sluice::grammar::regex
