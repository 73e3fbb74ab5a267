// Lark's syntax with llguidance's extensions.
#include <fmt/core.h>

#include <utility>

#include "base/utf8.h"
#include "grammar/lark/document.h"
#include "grammar/text_reader.h"

namespace sluice::grammar::lark {
namespace {

using Kind = Expression::Kind;

constexpr int kDeepestGroup = 200;  // groups within each other
constexpr int kMost = 1'000'000;    // repetitions

class Parser : TextReader {
 public:
  Parser(std::string_view text, Budget& budget) : TextReader(text), budget_(budget) {}

  Document parse() {
    for (space(true); more(); space(true)) {
      budget_.step();
      if (peek() == '%') {
        directive();
      } else {
        definition();
      }
      space(false);
      if (more() && !at_line_end()) fail("expected the end of the line");
    }
    return std::move(document_);
  }

 private:
  bool at_line_end() const { return peek() == '\n' || peek() == '\r'; }

  // Whitespace and comments.
  void space(bool lines) {
    for (;; ++at_) {
      if (peek() == '#' || (peek() == '/' && peek(1) == '/')) skip_line();
      if (!(peek() == ' ' || peek() == '\t' || (lines && at_line_end()))) return;
    }
  }
  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    const char next = peek(word.size());
    if (letter(next) || digit(next) || next == '_') return false;
    at_ += word.size();
    return true;
  }

  bool at_name() const { return letter(peek()) || peek() == '_'; }
  std::string name() {
    if (!at_name()) fail("expected a name");
    const size_t begin = at_;
    const auto inside = [&](size_t i) { return letter(peek(i)) || digit(peek(i)) || peek(i) == '_'; };
    while (inside(0) || (peek() == '-' && inside(1))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  void define(const std::string& name, Definition d) {
    const size_t at = d.at;
    if (!document_.definitions.try_emplace(name, std::move(d)).second) {
      fail_at(at, fmt::format("'{}' is defined twice", name));
    }
  }

  void definition() {
    while (peek() == '?' || peek() == '!') ++at_;  // they shape trees, not texts
    Definition d;
    d.at = at_;
    const std::string own = name();
    if (peek() == '{') fail("templates are not supported");
    if (take(".")) {  // a priority: every reading of a text counts here
      take("-");
      if (!digit(peek())) fail("expected a priority");
      number(kMost, 0);
    }
    if (take("[")) attributes(d);
    space(false);
    if (!take(":")) fail("expected ':'");
    d.body = expansions(false, 0);
    define(own, std::move(d));
  }
  void attributes(Definition& d) {
    do {
      space(false);
      const size_t begin = at_;
      const std::string key = name();
      space(false);
      const bool valued = take("=");
      space(false);
      if (key == "lazy" && !valued) {
        d.lazy = true;
      } else if (key == "suffix" && valued) {
        d.lazy = true;
        d.suffix = atom(0);
      } else if (key == "capture") {
        if (valued) atom(0);  // captures are not given back
      } else {
        fail_at(begin, fmt::format("the attribute '{}' is not supported (accepted: lazy, suffix=, capture)", key));
      }
      space(false);
    } while (take(","));
    if (!take("]")) fail("missing ']'");
  }

  void directive() {
    const size_t begin = at_;
    if (take_word("%ignore")) {
      document_.ignored.push_back(expansions(false, 0));
    } else if (take_word("%import")) {
      import();
    } else if (take_word("%llguidance")) {
      space(false);
      if (json() != "{}") fail_at(begin, "options of llguidance are not supported");
    } else {
      fail("unknown or unsupported directive (accepted: %ignore, %import)");
    }
  }

  // %import common.NAME, %import common.NAME -> OTHER, %import common (A, B)
  void import() {
    space(false);
    const size_t begin = at_;
    if (peek() == '.' || name() != "common") fail_at(begin, "only the library 'common' can be imported");
    space(false);
    if (take("(")) {
      do {
        space(true);
        import_one(false);
        space(true);
      } while (take(","));
      if (!take(")")) fail("missing ')'");
    } else {
      if (!take(".")) fail("expected '.'");
      import_one(true);
    }
  }
  void import_one(bool may_rename) {
    Definition d;
    d.at = at_;
    std::string own = name();
    const std::string_view pattern = common_terminal(own);
    if (pattern.empty()) fail_at(d.at, fmt::format("the library 'common' has no terminal '{}'", own));
    d.body = {.kind = Kind::kRegex, .text = std::string(pattern), .at = d.at};
    space(false);
    if (may_rename && take("->")) {
      space(false);
      own = name();
    }
    define(own, std::move(d));
  }

  Expression expansions(bool nested, int depth) {
    if (depth > kDeepestGroup) fail(fmt::format("groups are nested more than {} deep", kDeepestGroup));
    Expression all{.kind = Kind::kChoice, .at = at_};
    do {
      all.parts.push_back(both(nested, depth));
      space(nested);
      if (take("->")) {  // an alias names a tree
        space(nested);
        name();
      }
    } while (alternative(nested));
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }
  // Passes over '|', which may be on the next line.
  bool alternative(bool nested) {
    const size_t before = at_;
    space(true);
    if (take("|")) return true;
    if (!nested) at_ = before;
    return false;
  }
  Expression both(bool nested, int depth) {
    Expression all{.kind = Kind::kBoth, .at = at_};
    do {
      all.parts.push_back(sequence(nested, depth));
    } while (take("&"));
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }
  Expression sequence(bool nested, int depth) {
    Expression all{.kind = Kind::kSequence, .at = at_};
    for (space(nested); more(); space(nested)) {
      const char c = peek();
      if (c == '|' || c == ')' || c == ']' || c == '&' || at_line_end() || (c == '-' && peek(1) == '>')) break;
      budget_.step();
      all.parts.push_back(repeated(atom(depth)));
    }
    return all.parts.size() == 1 ? std::move(all.parts[0]) : all;
  }

  static Expression repeat(Expression item, int least, int most) {
    Expression e{.kind = Kind::kRepeat, .least = least, .most = most, .at = item.at};
    e.parts.push_back(std::move(item));
    return e;
  }
  Expression repeated(Expression item) {
    for (int operators = 0; operators < kDeepestGroup; ++operators) {
      const size_t before = at_;
      space(false);
      if (take("?")) {
        item = repeat(std::move(item), 0, 1);
      } else if (take("*")) {
        item = repeat(std::move(item), 0, -1);
      } else if (take("+")) {
        item = repeat(std::move(item), 1, -1);
      } else if (peek() == '{') {
        ++at_;
        item = braces(std::move(item));
      } else if (!(peek() == '~' && counted(item))) {
        at_ = before;
        return item;
      }
    }
    fail("too many repetitions of one item");
  }
  // {3}, {1,3}, {1,}, {,3}
  Expression braces(Expression item) {
    if (item.kind == Kind::kName && (at_name() || peek() == '"' || peek() == '/')) {
      fail("templates are not supported");
    }
    const auto count = [&] {
      space(false);
      const int n = number(kMost, -1);
      space(false);
      return n;
    };
    const int least = count();
    const int most = take(",") ? count() : least;
    if (least < 0 && most < 0) fail("expected a number of repetitions");
    if (!take("}")) fail("missing '}'");
    return ordered(std::move(item), std::max(least, 0), most);
  }
  // ~3, ~1..3; else '~' begins the next item.
  bool counted(Expression& item) {
    const size_t before = at_;
    ++at_;
    space(false);
    if (!digit(peek())) return at_ = before, false;
    const int least = number(kMost, 0);
    int most = least;
    space(false);
    if (take("..")) {
      space(false);
      most = number(kMost, -1);
      if (most < 0) fail("expected a number of repetitions");
    }
    item = ordered(std::move(item), least, most);
    return true;
  }
  Expression ordered(Expression item, int least, int most) {
    if (most >= 0 && most < least) fail("the numbers of a repetition are out of order");
    return repeat(std::move(item), least, most);
  }

  Expression atom(int depth) {
    const size_t begin = at_;
    if (depth > kDeepestGroup) fail(fmt::format("groups are nested more than {} deep", kDeepestGroup));
    if (take("(")) {
      Expression e = expansions(true, depth + 1);
      if (!take(")")) fail("missing ')'");
      return e;
    }
    if (take("[")) {
      Expression e = expansions(true, depth + 1);
      if (!take("]")) fail("missing ']'");
      return repeat(std::move(e), 0, 1);
    }
    if (take("~")) {
      space(false);
      Expression e{.kind = Kind::kNot, .at = begin};
      e.parts.push_back(atom(depth + 1));
      return e;
    }
    if (peek() == '"') return string_or_range();
    if (peek() == '/') return regex();
    if (peek() == '<') return special();
    if (take_word("%json")) return {.kind = Kind::kJson, .text = spaced_json(), .at = begin};
    if (take_word("%regex")) return {.kind = Kind::kSubstring, .text = spaced_json(), .at = begin};
    if (peek() == '@') fail("other grammars cannot be named");
    if (!at_name()) fail("expected a rule, a terminal, a string or a regular expression");
    return {.kind = Kind::kName, .text = name(), .at = begin};
  }

  Expression string_or_range() {
    Expression e{.kind = Kind::kString, .text = string(), .at = at_};
    if (take_word("i")) e.any_case = true;
    const size_t before = at_;
    space(false);
    if (!take("..")) return at_ = before, e;
    space(false);
    const size_t second = at_;
    const std::u32string first = characters(e.text), last = characters(peek() == '"' ? string() : "");
    if (first.size() != 1 || last.size() != 1) fail_at(second, "a range goes from one character to another one");
    if (last < first) fail_at(second, "a range of characters is out of order");
    return {.kind = Kind::kRange, .first = first[0], .last = last[0], .at = e.at};
  }
  static std::u32string characters(const std::string& text) {
    struct Reader : TextReader {
      using TextReader::TextReader;
      std::u32string all() {
        std::u32string out;
        while (more()) out.push_back(character());
        return out;
      }
    };
    return Reader(text).all();
  }
  std::string string() {
    std::string plain;
    ++at_;
    while (peek() != '"') {
      if (!more() || at_line_end()) fail("a string does not end");
      append_utf8(plain, take("\\") ? escaped() : character());
    }
    ++at_;
    return plain;
  }
  char32_t escaped() {
    if (take("x")) return hex(2);
    if (take("u")) return hex(4);
    if (take("U")) return hex(8);
    constexpr std::pair<char, char32_t> kEscapes[] = {{'n', '\n'}, {'r', '\r'},  {'t', '\t'}, {'f', '\f'},
                                                      {'v', '\v'}, {'b', '\b'},  {'0', '\0'}, {'\\', '\\'},
                                                      {'"', '"'},  {'\'', '\''}, {'/', '/'}};
    for (const auto& [c, meant] : kEscapes) {
      if (peek() == c && more()) return ++at_, meant;
    }
    fail(fmt::format("unknown escape '\\{}'", peek()));
  }

  Expression regex() {
    Expression e{.kind = Kind::kRegex, .at = at_};
    ++at_;
    while (peek() != '/') {
      if (!more() || at_line_end()) fail_at(e.at, "a regular expression does not end");
      if (take("\\")) {
        if (peek() != '/') e.text += '\\';
        if (!more() || at_line_end()) fail_at(e.at, "a regular expression does not end");
      }
      e.text += text_[at_++];
    }
    ++at_;
    std::string flags;
    for (; letter(peek()); ++at_) {
      switch (peek()) {
        case 'i':
        case 's':
          flags += peek();
          break;
        case 'm':  // of anchors, which terminals do not have
        case 'u':
          break;
        default:
          fail(fmt::format("the flag '{}' is not supported (accepted: i, m, s, u)", peek()));
      }
    }
    if (!flags.empty()) e.text = fmt::format("(?{}:{})", flags, e.text);
    return e;
  }

  Expression special() {
    const size_t begin = at_;
    while (more() && peek() != '>' && !at_line_end()) ++at_;
    if (!take(">")) fail_at(begin, "missing '>'");
    return {.kind = Kind::kSpecial, .text = std::string(text_.substr(begin, at_ - begin)), .at = begin};
  }

  std::string spaced_json() {
    space(true);
    return json();
  }
  // The text of a JSON object; whoever takes it parses it.
  std::string json() {
    const size_t begin = at_;
    if (peek() != '{') fail("expected a JSON object");
    int depth = 0;
    do {
      if (!more()) fail_at(begin, "a JSON object does not end");
      const char c = text_[at_++];
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (c != '"') continue;
      while (more() && peek() != '"') at_ += peek() == '\\' ? 2 : 1;
      if (!take("\"")) fail_at(begin, "a JSON object does not end");
    } while (depth > 0);
    return std::string(text_.substr(begin, at_ - begin));
  }

  Budget& budget_;
  Document document_;
};

}  // namespace

bool is_terminal(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

Document parse(std::string_view text, Budget& budget) { return Parser(text, budget).parse(); }

}  // namespace sluice::grammar::lark
