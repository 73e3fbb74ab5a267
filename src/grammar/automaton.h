// A regular language over bytes: a finite automaton without useless states. Values are cheap to copy and immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/limits.h"

namespace sluice::grammar {

class Automaton {
 public:
  // A transition on the bytes first .. last.
  struct Edge {
    uint8_t first = 0, last = 0;
    int32_t to = 0;
  };

  static Automaton none();                              // the empty language
  static Automaton literal(std::string_view bytes);     // one text; "" is the language of the empty text
  static Automaton bytes(uint8_t first, uint8_t last);  // one byte
  static Automaton code_points(std::span<const std::pair<char32_t, char32_t>> ranges);  // one character in UTF-8

  // The automaton: states count from 0, state 0 is the start. Nondeterministic, without empty transitions. Every state
  // is reachable, and from every state an accepting one is, except state 0 of the empty language.
  int states() const;
  std::span<const Edge> edges(int state) const;
  bool accepts(int state) const;

  bool empty() const;          // no text at all
  bool accepts_empty() const;  // the empty text
  bool matches(std::string_view text) const;
  // All texts of a language of at most `most` texts, sorted; none if there are more.
  std::optional<std::vector<std::string>> enumerate(size_t most, Budget& budget) const;

 private:
  struct Data;
  friend class AutomatonMaker;
  explicit Automaton(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  std::shared_ptr<const Data> data_;
};

// Operations on languages. Those on two languages that determinize (intersect, subtract, and determinize itself) may
// need exponentially many states, which the budget bounds.
Automaton concatenate(const Automaton& a, const Automaton& b, Budget& budget);
Automaton unite(std::span<const Automaton> languages, Budget& budget);
Automaton repeat(const Automaton& a, int least, int most, Budget& budget);  // most < 0: no limit
Automaton intersect(const Automaton& a, const Automaton& b, Budget& budget);
Automaton subtract(const Automaton& a, const Automaton& b, Budget& budget);
Automaton determinize(const Automaton& a, Budget& budget);  // minimal, too
bool disjoint(const Automaton& a, const Automaton& b, Budget& budget);
bool includes(const Automaton& whole, const Automaton& part, Budget& budget);

// All sequences of whole UTF-8 characters (Unicode scalar values: no surrogates, no overlong forms).
const Automaton& any_text();

// The JSON strings, with their quotes, whose decoded text is in `utf8`: each character by itself or as any of its
// escapes (RFC 8259, section 7). Printable ASCII is not escaped, as no encoder does that, except for " & ' / < > and
// the backslash. A lone surrogate escape is in no such language.
Automaton json_string(const Automaton& utf8, Budget& budget);
Automaton json_string_body(const Automaton& utf8, Budget& budget);  // the same without the quotes

// The texts with at least `least` and at most `most` characters; most < 0: no limit.
Automaton text_of_length(int least, int most, Budget& budget);

enum class RegexSyntax {
  kEcma,    // ECMA 262 with the u flag, as JSON Schema's "pattern"
  kPython,  // what guided_regex takes: the common subset of Python's re and Rust's regex
};
// The texts that a regular expression matches: whole ones if `anchored`, else those that contain a match. Throws
// GrammarError for what is not regular (back-references), not supported, or malformed.
Automaton parse_regex(std::string_view pattern, RegexSyntax syntax, bool anchored, Budget& budget);

}  // namespace sluice::grammar
