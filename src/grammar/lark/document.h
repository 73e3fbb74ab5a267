// A Lark grammar as trees.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/limits.h"

namespace sluice::grammar::lark {

struct Expression {
  enum class Kind {
    kSequence,   // of parts; none: the empty text
    kChoice,     // one of the parts
    kBoth,       // the texts that are in every part
    kNot,        // the texts that are not in part 0
    kRepeat,     // part 0, `least` to `most` times; most < 0: no limit
    kName,       // a rule or terminal by its name
    kString,     // `text` as it is
    kRegex,      // `text` is a regular expression
    kRange,      // one character, `first` to `last`
    kSpecial,    // a special token: "<name>" or "<[id]>"
    kJson,       // `text` is a JSON schema
    kSubstring,  // `text` is the JSON of %regex
  };
  Kind kind = Kind::kSequence;
  std::string text{};
  bool any_case = false;  // of a string
  char32_t first = 0, last = 0;
  int least = 0, most = 0;
  std::vector<Expression> parts{};
  size_t at = 0;  // place in the grammar
};

struct Definition {
  Expression body{};
  bool lazy = false;                   // the shortest text, as by llguidance's attributes "lazy" and "suffix"
  std::optional<Expression> suffix{};  // follows the body
  size_t at = 0;
};

struct Document {
  std::map<std::string, Definition> definitions{};  // rules and terminals
  std::vector<Expression> ignored{};                // %ignore
};

// Whether a name is a terminal's: its first letter is upper case.
bool is_terminal(std::string_view name);

// Throws GrammarError with the place of what is wrong.
Document parse(std::string_view text, Budget& budget);

// The regular expression of a terminal of the library "common"; empty if there is no such terminal.
std::string_view common_terminal(std::string_view name);

}  // namespace sluice::grammar::lark
