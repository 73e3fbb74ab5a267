// By recursive descent; groups nest to a bounded depth.
#include "grammar/regex/parser.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

namespace sluice::grammar::regex {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepestGroup = 200;  // groups within each other

const CharSet kDigits = {{'0', '9'}};
const CharSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
// White space and line terminators of ECMA 262.
const CharSet kSpace = {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

class Parser {
 public:
  Parser(std::string_view pattern, RegexSyntax syntax, Budget& budget)
      : pattern_(pattern), python_(syntax == RegexSyntax::kPython), budget_(budget) {}

  Expression parse() {
    if (python_) global_flags();
    Expression whole = choice(0);
    if (more()) fail("unmatched ')'");
    return whole;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw GrammarError(fmt::format("regular expression, byte {}: {}", at_, what));
  }
  bool more() const { return at_ < pattern_.size(); }
  char peek() const { return more() ? pattern_[at_] : '\0'; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  // The next character.
  char32_t next() {
    if (!more()) fail("the pattern ends too early");
    const auto lead = static_cast<uint8_t>(pattern_[at_++]);
    if (lead < 0x80) return lead;
    const int length = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc2 ? 1 : 0;
    char32_t c = lead & (0x3fu >> length);
    for (int i = 0; i < length; ++i) {
      if (!more() || (static_cast<uint8_t>(pattern_[at_]) & 0xc0) != 0x80) fail("invalid UTF-8");
      c = c << 6 | (static_cast<uint8_t>(pattern_[at_++]) & 0x3f);
    }
    if (length == 0) fail("invalid UTF-8");
    return c;
  }

  static Expression of_set(CharSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }
  static Expression assertion(Kind kind) { return {.kind = kind, .asserts = true}; }
  static Expression of_parts(Kind kind, std::vector<Expression> parts) {
    Expression e{.kind = kind, .parts = std::move(parts)};
    for (const Expression& part : e.parts) {
      e.asserts = e.asserts || part.asserts;
      e.looks_ahead = e.looks_ahead || part.looks_ahead;
    }
    return e;
  }

  // (?i), (?s) and (?m) at the beginning.
  void global_flags() {
    while (pattern_.substr(at_).starts_with("(?")) {
      size_t end = at_ + 2;
      while (end < pattern_.size() && std::string_view("aimsux").find(pattern_[end]) != std::string_view::npos) ++end;
      if (end == at_ + 2 || end == pattern_.size() || pattern_[end] != ')') return;
      for (size_t i = at_ + 2; i < end; ++i) set_flag(pattern_[i], true);
      at_ = end + 1;
    }
  }
  void set_flag(char flag, bool on) {
    if (flag == 'i') {
      ignore_case_ = on;
    } else if (flag == 's') {
      dot_all_ = on;
    } else if (flag != 'u') {
      fail(fmt::format("the flag '{}' is not supported (accepted: i, s, u)", flag));
    }
  }

  Expression choice(int depth) {
    if (depth > kDeepestGroup) fail(fmt::format("groups are nested more than {} deep", kDeepestGroup));
    std::vector<Expression> alternatives = {sequence(depth)};
    while (take("|")) alternatives.push_back(sequence(depth));
    return alternatives.size() == 1 ? std::move(alternatives[0]) : of_parts(Kind::kChoice, std::move(alternatives));
  }

  Expression sequence(int depth) {
    std::vector<Expression> parts;
    while (more() && peek() != '|' && peek() != ')') {
      budget_.step();
      budget_.allocate(static_cast<int64_t>(sizeof(Expression)));
      parts.push_back(quantified(depth));
    }
    return parts.size() == 1 ? std::move(parts[0]) : of_parts(Kind::kSequence, std::move(parts));
  }

  Expression quantified(int depth) {
    Expression item = atom(depth);
    for (bool first = true;; first = false) {
      const size_t begin = at_;
      int least = 0, most = -1;
      if (!quantifier(least, most)) return item;
      if (!first) at_ = begin, fail("a quantifier follows a quantifier");
      if (item.kind == Kind::kLookahead || item.kind == Kind::kNoLookahead) fail("a lookahead cannot be repeated");
      // Whether a quantifier is greedy or lazy changes which match is found, not whether there is one.
      if (!take("?") && take("+")) fail("possessive quantifiers are not supported");
      if (item.looks_ahead && most != 0 && most != 1) fail("a repeated group cannot look ahead");
      Expression repeat = of_parts(Kind::kRepeat, {});
      repeat.asserts = item.asserts;
      repeat.looks_ahead = item.looks_ahead;
      repeat.parts.push_back(std::move(item));
      repeat.least = least;
      repeat.most = most;
      item = std::move(repeat);
    }
  }

  bool quantifier(int& least, int& most) {
    if (take("*")) return true;
    if (take("+")) return least = 1, true;
    if (take("?")) return most = 1, true;
    if (peek() != '{') return false;
    const size_t begin = at_++;
    const bool has_least = number(least);
    most = least;
    bool has_most = has_least;
    const bool comma = take(",");
    if (comma) {
      most = -1;
      has_most = number(most);
    }
    if (!take("}") || (!has_least && !(python_ && comma && has_most))) {
      // Python takes an incomplete quantifier as text; ECMA 262 with the u flag has none.
      if (!python_) at_ = begin, fail("incomplete quantifier (expected {n}, {n,} or {n,m})");
      at_ = begin;
      return false;
    }
    if (most >= 0 && most < least) fail("the numbers of a quantifier are out of order");
    return true;
  }

  bool number(int& value) {
    const size_t begin = at_;
    int64_t n = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) n = std::min<int64_t>(n * 10 + (peek() - '0'), int64_t{1} << 40);
    if (at_ == begin) return false;
    if (n > 1'000'000) fail("a quantifier has a number above 1000000");
    value = static_cast<int>(n);
    return true;
  }

  Expression atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return of_set(cased(char_class()));
    if (take(".")) {
      if (dot_all_) return of_set({{0, CharSet::kLast}});
      CharSet lines = {{'\n', '\n'}};
      if (!python_) lines.add(CharSet{{'\r', '\r'}, {0x2028, 0x2029}});
      return of_set(lines.complement());
    }
    if (take("^")) return assertion(Kind::kBegin);
    if (take("$")) {
      if (!python_) return assertion(Kind::kEnd);
      // Python's $ also matches before a line feed at the end.
      Expression end = assertion(Kind::kEnd);
      return end;
    }
    if (take("\\")) return escape();
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') fail("there is nothing to repeat");
    // Without the u flag, ECMA 262 takes closing brackets as text (annex B.1.2), and patterns rely on that.
    if (!python_ && c == '{') fail(fmt::format("'{}' must be escaped", c));
    const char32_t character = next();
    return of_set(cased({{character, character}}));
  }

  CharSet cased(CharSet set) const { return ignore_case_ ? set.with_cases() : set; }

  Expression group(int depth) {
    const bool ignore_case = ignore_case_, dot_all = dot_all_;
    Kind look = Kind::kSequence;
    if (take("?")) {
      if (take("=")) {
        look = Kind::kLookahead;
      } else if (take("!")) {
        look = Kind::kNoLookahead;
      } else if (take("<=") || take("<!")) {
        fail("lookbehind is not supported");
      } else if (take(">")) {
        fail("atomic groups are not supported");
      } else if (take("P<") || take("<")) {
        while (more() && peek() != '>') ++at_;
        if (!take(">")) fail("the name of a group does not end");
      } else if (take("P=") || take("P>") || take("(") || take("#")) {
        fail("this kind of group is not supported");
      } else if (!take(":")) {
        flags();
      }
    }
    Expression inner = choice(depth + 1);
    if (!take(")")) fail("missing ')'");
    ignore_case_ = ignore_case, dot_all_ = dot_all;
    if (look == Kind::kSequence) return inner;
    Expression e = of_parts(look, {});
    if (inner.looks_ahead) fail("a lookahead within a lookahead is not supported");
    e.parts.push_back(std::move(inner));
    e.asserts = e.looks_ahead = true;
    return e;
  }

  // (?i:...), (?-i:...)
  void flags() {
    bool on = true;
    while (more() && peek() != ':') {
      if (peek() == ')') fail("flags must be at the beginning of the pattern, or of a group");
      if (take("-")) {
        on = false;
      } else {
        set_flag(pattern_[at_++], on);
      }
    }
    if (!take(":")) fail("missing ':' after the flags of a group");
  }

  Expression escape() {
    if (!more()) fail("the pattern ends with a backslash");
    if (take("b")) return assertion(Kind::kBoundary);
    if (take("B")) return assertion(Kind::kNoBoundary);
    if (python_ && take("A")) return assertion(Kind::kBegin);
    if (python_ && (take("Z") || take("z"))) return assertion(Kind::kEnd);
    if (peek() >= '1' && peek() <= '9') fail("back-references are not regular, and not supported");
    if (peek() == 'k') fail("back-references are not regular, and not supported");
    if (const std::optional<CharSet> set = class_escape()) return of_set(cased(*set));
    const char32_t c = character_escape(false);
    return of_set(cased({{c, c}}));
  }

  // \d, \w, \s, \p{...} and their opposites, after the backslash.
  std::optional<CharSet> class_escape() {
    const char c = peek();
    const auto either = [this, c](const CharSet& set) {
      ++at_;
      return c >= 'A' && c <= 'Z' ? set.complement() : set;
    };
    if (c == 'd' || c == 'D') return either(python_ ? *unicode_property("Nd") : kDigits);
    if (c == 's' || c == 'S') return either(python_ ? python_space() : kSpace);
    if (c == 'w' || c == 'W') return either(python_ ? python_word() : kWord);
    if (c != 'p' && c != 'P') return std::nullopt;
    ++at_;
    std::string_view name;
    if (take("{")) {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos) fail("missing '}' after \\p{");
      name = pattern_.substr(at_, end - at_);
      at_ = end + 1;
    } else if (python_ && more()) {
      name = pattern_.substr(at_++, 1);
    } else {
      fail("\\p needs a property in braces");
    }
    const std::optional<CharSet> set = unicode_property(name);
    if (!set) fail(fmt::format("unknown property '{}' (accepted: general categories, Any, ASCII, White_Space)", name));
    return c == 'P' ? set->complement() : *set;
  }

  static CharSet python_space() {
    CharSet set = *unicode_property("White_Space");
    set.add(0x1c, 0x1f);
    return set;
  }
  static CharSet python_word() {
    CharSet set = *unicode_property("L");
    set.add(*unicode_property("N"));
    set.add('_', '_');
    return set;
  }

  char32_t hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected a hexadecimal digit");
      ++at_;
      value = value << 4 | static_cast<char32_t>(digit);
    }
    return value;
  }

  char32_t checked(char32_t c) const {
    if (c > CharSet::kLast) fail("a character above U+10FFFF");
    if (c >= 0xd800 && c <= 0xdfff) fail("a lone surrogate is in no text");
    return c;
  }

  char32_t unicode_escape() {
    if (take("{")) {
      char32_t value = 0;
      do {
        value = value << 4 | hex(1);
        if (value > CharSet::kLast) fail("a character above U+10FFFF");
      } while (peek() != '}');
      ++at_;
      return checked(value);
    }
    const char32_t high = hex(4);
    if (high >= 0xd800 && high <= 0xdbff && take("\\u")) {
      const char32_t low = hex(4);
      if (low < 0xdc00 || low > 0xdfff) fail("a lone surrogate is in no text");
      return 0x10000 + ((high - 0xd800) << 10 | (low - 0xdc00));
    }
    return checked(high);
  }

  // One character, after the backslash.
  char32_t character_escape(bool in_class) {
    if (take("n")) return '\n';
    if (take("r")) return '\r';
    if (take("t")) return '\t';
    if (take("f")) return '\f';
    if (take("v")) return '\v';
    if (take("x")) return hex(2);
    if (take("u")) return unicode_escape();
    if (python_ && take("U")) return checked(hex(8));
    if (python_ && take("a")) return '\a';
    if (in_class && take("b")) return '\b';
    if (take("0")) {
      if (peek() >= '0' && peek() <= '9') fail("octal escapes are not supported");
      return 0;
    }
    if (take("c")) {
      const char letter = peek();
      if ((letter | 0x20) < 'a' || (letter | 0x20) > 'z') fail("expected a letter after \\c");
      ++at_;
      return static_cast<char32_t>(letter & 0x1f);
    }
    const char32_t c = next();
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter) --at_, fail(fmt::format("unknown escape '\\{}'", static_cast<char>(c)));
    return c;
  }

  // After '['.
  CharSet char_class() {
    const bool negated = take("^");
    CharSet set;
    for (bool first = true; first || peek() != ']'; first = false) {
      if (!more()) fail("missing ']'");
      if (first && peek() == ']' && !python_) break;  // ECMA 262: [] is empty, and [^] is everything
      budget_.step();
      const std::optional<CharSet> escaped = member(set);
      if (escaped) set.add(*escaped);
    }
    ++at_;
    return negated ? cased(set).complement() : set;
  }

  // One character, range or escape of a class. Returns what is not a range.
  std::optional<CharSet> member(CharSet& set) {
    const auto one = [this]() -> std::pair<std::optional<CharSet>, char32_t> {
      if (!take("\\")) return {std::nullopt, next()};
      if (std::optional<CharSet> escaped = class_escape()) return {std::move(escaped), 0};
      return {std::nullopt, character_escape(true)};
    };
    auto [escaped, first] = one();
    const bool range = peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
    if (!range) {
      if (escaped) return escaped;
      set.add(first, first);
      return std::nullopt;
    }
    if (escaped) {
      // "\d-x": ECMA 262 with the u flag has no such range. Annex B takes the hyphen as a character.
      return escaped;
    }
    ++at_;
    const auto [also_escaped, last] = one();
    if (also_escaped) {
      set.add(first, first);
      set.add('-', '-');
      return also_escaped;
    }
    if (last < first) fail("a range of a class is out of order");
    set.add(first, last);
    return std::nullopt;
  }

  const std::string_view pattern_;
  const bool python_;
  Budget& budget_;
  size_t at_ = 0;
  bool ignore_case_ = false, dot_all_ = false;
};

}  // namespace

Expression parse(std::string_view pattern, RegexSyntax syntax, Budget& budget) {
  return Parser(pattern, syntax, budget).parse();
}

}  // namespace sluice::grammar::regex
