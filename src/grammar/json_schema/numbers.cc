#include "grammar/json_schema/numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "grammar/automata/maker.h"

namespace sluice::grammar::json_schema {
namespace {

constexpr const char* kUnsigned = R"((?:0|[1-9][0-9]*)(?:\.[0-9]+)?)";
constexpr const char* kExponent = R"((?:[eE][+-]?[0-9]+)?)";

Automaton pattern(const std::string& text, Budget& budget) {
  return parse_regex(text, RegexSyntax::kEcma, true, budget);
}

Automaton shared(const std::string& text) {
  Budget budget;
  return determinize(pattern(text, budget), budget);
}

// A digit above, or below, another one; empty if there is none.
std::string above(char digit) { return digit == '9' ? "" : fmt::format("[{}-9]", static_cast<char>(digit + 1)); }
std::string below(char digit) { return digit == '0' ? "" : fmt::format("[0-{}]", static_cast<char>(digit - 1)); }

void add(std::string& alternatives, const std::string& one) {
  if (!alternatives.empty()) alternatives += '|';
  alternatives += one;
}

// Numbers without a sign that are larger than the bound, or equal to it.
std::string larger(const Decimal& b, bool exclusive) {
  const size_t n = b.digits.size();
  std::string out = fmt::format(R"([1-9][0-9]{{{},}}(?:\.[0-9]+)?)", n);
  for (size_t i = 0; i < n; ++i) {
    const std::string digit = above(b.digits[i]);
    if (!digit.empty()) {
      add(out, fmt::format(R"({}{}[0-9]{{{}}}(?:\.[0-9]+)?)", b.digits.substr(0, i), digit, n - i - 1));
    }
  }
  for (size_t i = 0; i < b.fraction.size(); ++i) {
    const std::string digit = above(b.fraction[i]);
    if (!digit.empty()) add(out, fmt::format(R"({}\.{}{}[0-9]*)", b.digits, b.fraction.substr(0, i), digit));
  }
  const std::string equal = b.digits + R"(\.)" + b.fraction;
  if (exclusive) {
    add(out, equal + "0*[1-9][0-9]*");
  } else {
    if (b.fraction.empty()) add(out, b.digits);
    add(out, equal + (b.fraction.empty() ? "[0-9]+" : "[0-9]*"));
  }
  return out;
}

// Numbers without a sign that are smaller than the bound, or equal to it; empty if there are none.
std::string smaller(const Decimal& b, bool exclusive) {
  const size_t n = b.digits.size();
  std::string out;
  if (n > 1) {
    add(out, R"(0(?:\.[0-9]+)?)");
    add(out, fmt::format(R"([1-9][0-9]{{0,{}}}(?:\.[0-9]+)?)", n - 2));
  }
  for (size_t i = 0; i < n; ++i) {
    // A number of several digits does not begin with 0.
    const bool first = i == 0 && n > 1;
    if (first && b.digits[0] == '1') continue;
    const std::string digit = first ? fmt::format("[1-{}]", static_cast<char>(b.digits[0] - 1)) : below(b.digits[i]);
    if (!digit.empty()) {
      add(out, fmt::format(R"({}{}[0-9]{{{}}}(?:\.[0-9]+)?)", b.digits.substr(0, i), digit, n - i - 1));
    }
  }
  for (size_t i = 0; i < b.fraction.size(); ++i) {
    const std::string digit = below(b.fraction[i]);
    // The text may also end before this digit, which is not 0 or has such a digit behind it.
    add(out, i == 0 ? b.digits : fmt::format(R"({}\.{})", b.digits, b.fraction.substr(0, i)));
    if (!digit.empty()) add(out, fmt::format(R"({}\.{}{}[0-9]*)", b.digits, b.fraction.substr(0, i), digit));
  }
  if (!exclusive) {
    if (b.fraction.empty()) add(out, b.digits);
    add(out, fmt::format(R"({}\.{}0{})", b.digits, b.fraction, b.fraction.empty() ? "+" : "*"));
  }
  return out;
}

Automaton bounded(const Decimal& b, bool exclusive, bool from_below, Budget& budget) {
  // The side on which the bound's sign leaves everything, and the side that it cuts.
  const std::string open = from_below ? "" : "-", cut = from_below ? "-" : "";
  std::string out;
  const bool cuts_far_side = b.zero() || b.negative == from_below;
  if (cuts_far_side) {
    if (b.zero() && exclusive) {
      add(out, fmt::format("{}(?:{})", open, larger(b, true)));
    } else {
      add(out, fmt::format("{}{}{}", open, kUnsigned, b.zero() ? kExponent : ""));
      const std::string rest = smaller(b, exclusive);
      if (!rest.empty()) add(out, fmt::format("{}(?:{})", cut, rest));
    }
  } else {
    add(out, fmt::format("{}(?:{})", open, larger(b, exclusive)));
  }
  return pattern(out, budget);
}

}  // namespace

Decimal Decimal::of(const Json& number) {
  const std::string dumped = number.dump();
  Decimal d;
  d.negative = dumped[0] == '-';
  std::string text = dumped.substr(d.negative ? 1 : 0);
  int exponent = 0;
  const size_t e = text.find_first_of("eE");
  if (e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  const size_t point = text.find('.');
  d.digits = text.substr(0, point);
  d.fraction = point == std::string::npos ? "" : text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    const bool has_fraction = !d.fraction.empty();
    d.digits.push_back(has_fraction ? d.fraction[0] : '0');
    if (has_fraction) d.fraction = d.fraction.substr(1);
  }
  for (; exponent < 0; ++exponent) {
    d.fraction = fmt::format("{}{}", d.digits.empty() ? '0' : d.digits.back(), d.fraction);
    if (!d.digits.empty()) d.digits.pop_back();
  }
  const size_t first = d.digits.find_first_not_of('0');
  d.digits = first == std::string::npos ? "0" : d.digits.substr(first);
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  if (d.zero()) d.negative = false;
  return d;
}

const Automaton& any_number() {
  static const Automaton numbers = shared(std::string("-?") + kUnsigned + kExponent);
  return numbers;
}

const Automaton& digits_only() {
  static const Automaton integers = shared(R"(-?(?:0|[1-9][0-9]*))");
  return integers;
}

const Automaton& any_integer() {
  static const Automaton integers = shared(R"(-?(?:0|[1-9][0-9]*)(?:\.0|[eE][+]?[0-9]{1,3})?)");
  return integers;
}

Automaton at_least(const Decimal& bound, bool exclusive, Budget& budget) {
  return bounded(bound, exclusive, true, budget);
}
Automaton at_most(const Decimal& bound, bool exclusive, Budget& budget) {
  return bounded(bound, exclusive, false, budget);
}

// The remainder of the number in units of the divisor's last digit.
Automaton multiples_of(const Decimal& divisor, Budget& budget) {
  const std::string text = (divisor.digits == "0" ? "" : divisor.digits) + divisor.fraction;
  if (text.size() > 9 || std::stoul(text) > 20'000) {
    throw GrammarError(fmt::format("a divisor of more than 20000 units of its last digit is not supported"));
  }
  const int d = std::stoi(text), places = static_cast<int>(divisor.fraction.size());
  // State: -1 before the first digit; then the remainder, and the fraction's digits so far: 0 none, 1 the point.
  AutomatonMaker maker(budget);
  const auto states_of = [&](int count) { return maker.add_states(count); };
  const int32_t start = maker.add_state(), minus = maker.add_state();
  maker.add_edge(start, {'-', '-', minus});
  int unit = 1;
  for (int i = 0; i < places; ++i) unit = unit * 10 % d;
  const int32_t zero = maker.add_state();                // the integer part 0
  const int32_t whole = states_of(d);                    // remainder of the integer part, in whole numbers times `unit`
  const int32_t fraction = states_of(d * (places + 1));  // remainder, and digits of the fraction; at least one
  const int32_t points = states_of(d);                   // right behind the point
  const auto place = [&](int digits, int remainder) { return fraction + digits * d + remainder; };
  const auto digit = [](int value) { return static_cast<uint8_t>('0' + value); };
  const auto from_integer = [&](int32_t from, int remainder) {
    maker.add_edge(from, {'.', '.', points + remainder});
    if (remainder == 0) maker.accept(from);
  };
  for (const int32_t from : {start, minus}) {
    maker.add_edge(from, {'0', '0', zero});
    for (int v = 1; v <= 9; ++v) maker.add_edge(from, {digit(v), digit(v), whole + v * unit % d});
  }
  from_integer(zero, 0);
  std::vector<int> place_value(static_cast<size_t>(places));  // of the digits of the fraction
  for (int i = places - 1, value = 1; i >= 0; --i, value = value * 10 % d)
    place_value[static_cast<size_t>(i)] = value % d;
  for (int r = 0; r < d; ++r) {
    from_integer(whole + r, r);
    for (int v = 0; v <= 9; ++v) {
      maker.add_edge(whole + r,
                     {digit(v), digit(v), whole + static_cast<int>((int64_t{r} * 10 + int64_t{v} * unit) % d)});
    }
    for (int i = 0; i <= places; ++i) {
      const int32_t from = i == 0 ? points + r : place(i, r);
      if (i > 0 && r == 0) maker.accept(from);
      for (int v = 0; v <= 9; ++v) {
        if (i == places) {
          // Digits beyond the divisor's last one are zeros.
          if (v == 0) maker.add_edge(from, {'0', '0', places == 0 ? place(0, r) : place(places, r)});
        } else {
          const int value = static_cast<int>((r + int64_t{v} * place_value[static_cast<size_t>(i)]) % d);
          maker.add_edge(from, {digit(v), digit(v), place(i + 1, value)});
        }
      }
    }
    if (places == 0) {
      if (r == 0) maker.accept(place(0, r));
      maker.add_edge(place(0, r), {'0', '0', place(0, r)});
    }
  }
  return maker.finish();
}

Automaton equal_to(const Json& number, Budget& budget) {
  const Decimal d = Decimal::of(number);
  std::string digits = d.zero() ? std::string("-?") : d.negative ? "-" : "";
  if (d.digits.size() + d.fraction.size() > 1000) throw GrammarError("a number of more than 1000 digits");
  digits += d.fraction.empty() ? d.digits + R"((?:\.0+)?)" : d.digits + R"(\.)" + d.fraction + "0*";
  // With an exponent: one digit before the point.
  std::string exponent = "0";
  if (const std::string all = d.digits + d.fraction; !d.zero()) {
    const size_t first = all.find_first_not_of('0'), last = all.find_last_not_of('0');
    const int power = static_cast<int>(d.digits.size()) - 1 - static_cast<int>(first);
    const std::string rest = all.substr(first + 1, last - first);
    exponent = fmt::format("{}{}{}[eE]{}0?{}", d.negative ? "-" : "", all[first], rest.empty() ? "" : "\\." + rest,
                           power < 0 ? "-" : "[+]?", std::abs(power));
  }
  const Automaton spellings[] = {pattern(digits, budget), pattern(exponent, budget)};
  return unite(spellings, budget);
}

}  // namespace sluice::grammar::json_schema
