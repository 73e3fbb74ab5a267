// Languages of JSON numbers.
#pragma once

#include <string>

#include "base/json.h"
#include "grammar/automaton.h"

namespace sluice::grammar::json_schema {

// An exact decimal number.
struct Decimal {
  bool negative = false;
  std::string digits;    // of the integer part, without leading zeros; "0" if there is none
  std::string fraction;  // without trailing zeros

  static Decimal of(const Json& number);
  bool zero() const { return digits == "0" && fraction.empty(); }
};

const Automaton& any_number();   // as RFC 8259 writes them
const Automaton& digits_only();  // integers as digits, perhaps with a sign: 12, -3
const Automaton& any_integer();  // numbers without a fraction: 12, -3.0, 1e3; no other zeros, no negative exponents
// Bounds take numbers without an exponent, except those that are only about the sign.
Automaton at_least(const Decimal& bound, bool exclusive, Budget& budget);
Automaton at_most(const Decimal& bound, bool exclusive, Budget& budget);
// Multiples of a positive number, written without an exponent. Throws GrammarError if it has too many digits.
Automaton multiples_of(const Decimal& divisor, Budget& budget);
Automaton equal_to(const Json& number, Budget& budget);

}  // namespace sluice::grammar::json_schema
