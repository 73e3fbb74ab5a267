// GBNF, the grammars of llama.cpp (its grammars/README.md): rules "name ::= ...", of which "root" is the start.
#include <fmt/core.h>

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/utf8.h"
#include "grammar/source.h"
#include "grammar/text_reader.h"

namespace sluice::grammar::gbnf {
namespace {

constexpr int kDeepestGroup = 200;  // groups within each other
constexpr int kMostCopies = 64;     // of an automaton that is repeated; more are counted by a node
constexpr int kMost = 1'000'000;    // repetitions

// What was read: regular as long as it names no rule and no special token.
using Part = std::variant<Automaton, NodeId>;

class Parser : TextReader {
 public:
  Parser(Builder& builder, std::string_view text, const CompileContext& context)
      : TextReader(text), builder_(builder), context_(context) {}

  NodeId parse() {
    for (space(true); more(); space(true)) rule();
    for (const auto& [name, r] : rules_) {
      if (!r.defined) fail_at(r.named_at, fmt::format("the rule '{}' is not defined", name));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) throw GrammarError("grammar: there is no rule 'root'");
    return root->second.node;
  }

 private:
  struct Rule {
    NodeId node = 0;
    bool defined = false;
    size_t named_at = 0;
  };

  // White space and comments.
  void space(bool lines) {
    for (;; ++at_) {
      if (peek() == '#') skip_line();
      const bool line = peek() == '\n' || peek() == '\r';
      if (!(peek() == ' ' || peek() == '\t' || (line && lines))) return;
    }
  }
  // Whether an alternative goes on after a line break, which then is passed over.
  bool alternative_follows(bool nested) {
    const size_t before = at_;
    space(true);
    if (peek() == '|') return true;
    if (!nested) at_ = before;
    return false;
  }

  static bool names(char c) { return letter(c) || digit(c) || c == '-' || c == '_'; }
  std::string name() {
    const size_t begin = at_;
    while (names(peek())) ++at_;
    if (at_ == begin) fail("expected the name of a rule");
    return std::string(text_.substr(begin, at_ - begin));
  }
  Rule& rule_of(const std::string& name, size_t at) {
    const auto [place, fresh] = rules_.try_emplace(name);
    if (fresh) place->second = {builder_.declare(name), false, at};
    return place->second;
  }

  void rule() {
    const size_t begin = at_;
    const std::string own = name();
    space(false);
    if (!take("::=")) fail("expected '::='");
    space(true);
    const Part body = alternatives(false, 0);
    Rule& r = rule_of(own, begin);
    if (r.defined) fail_at(begin, fmt::format("the rule '{}' is defined twice", own));
    r.defined = true;
    builder_.define(r.node, node(body));
    space(false);
    if (more() && peek() != '\n' && peek() != '\r') fail("expected the end of the line");
  }

  NodeId node(const Part& part) {
    const auto* id = std::get_if<NodeId>(&part);
    return id != nullptr ? *id : builder_.regular(std::get<Automaton>(part));
  }
  Part join(const std::vector<Part>& parts, bool choice) {
    std::vector<Automaton> languages;
    std::vector<NodeId> nodes;
    for (const Part& part : parts) {
      if (const auto* language = std::get_if<Automaton>(&part)) languages.push_back(*language);
    }
    if (languages.size() < parts.size()) {
      for (const Part& part : parts) nodes.push_back(node(part));
      return choice ? builder_.choice(nodes) : builder_.sequence(nodes);
    }
    if (choice) return unite(languages, context_.budget);
    Automaton all = Automaton::literal("");
    for (const Automaton& language : languages) all = concatenate(all, language, context_.budget);
    return all;
  }

  Part alternatives(bool nested, int depth) {
    if (depth > kDeepestGroup) fail(fmt::format("groups are nested more than {} deep", kDeepestGroup));
    std::vector<Part> all = {sequence(nested, depth)};
    while (alternative_follows(nested)) {
      ++at_;
      space(true);
      all.push_back(sequence(nested, depth));
    }
    return all.size() == 1 ? all[0] : join(all, true);
  }

  Part sequence(bool nested, int depth) {
    std::vector<Part> parts;
    for (;;) {
      space(nested);
      const char c = peek();
      if (!more() || c == '|' || c == ')' || c == '\n' || c == '\r') break;
      context_.budget.step();
      parts.push_back(repeated(element(depth)));
    }
    if (parts.empty()) return Automaton::literal("");
    return parts.size() == 1 ? parts[0] : join(parts, false);
  }

  Part element(int depth) {
    if (peek() == '"') return literal();
    if (take("[")) return char_class();
    if (take(".")) {
      const std::pair<char32_t, char32_t> any[] = {{0, 0x10ffff}};
      return Automaton::code_points(any);
    }
    if (take("(")) {
      space(true);
      const Part inner = alternatives(true, depth + 1);
      space(true);
      if (!take(")")) fail("missing ')'");
      return inner;
    }
    if (peek() == '<') return special();
    if (peek() == '!') fail("negated tokens are not supported");
    const size_t begin = at_;
    return rule_of(name(), begin).node;
  }

  Part repeated(Part item) {
    for (;;) {
      int least = 0, most = -1;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (take("{")) {
        bounds(least, most);
      } else if (!take("*")) {
        return item;
      }
      const auto* language = std::get_if<Automaton>(&item);
      if (language != nullptr && least <= kMostCopies && most <= kMostCopies) {
        item = repeat(*language, least, most, context_.budget);
      } else {
        item = builder_.repeat(node(item), least, most);
      }
    }
  }

  void bounds(int& least, int& most) {
    const auto count = [&] {
      space(false);
      const int n = number(kMost, -1);
      space(false);
      return n;
    };
    least = count();
    if (take(",")) {
      most = count();
      if (least < 0 && most < 0) fail("expected a number of repetitions");
      least = std::max(least, 0);
    } else {
      if (least < 0) fail("expected a number of repetitions");
      most = least;
    }
    if (!take("}")) fail("missing '}'");
    if (most >= 0 && most < least) fail("the numbers of a repetition are out of order");
  }

  char32_t letter_or_escape() { return take("\\") ? escaped() : character(); }
  char32_t escaped() {
    if (take("x")) return hex(2);
    if (take("u")) return hex(4);
    if (take("U")) return hex(8);
    if (take("n")) return '\n';
    if (take("r")) return '\r';
    if (take("t")) return '\t';
    for (const char c : {'\\', '"', '[', ']', '-', '^', '/'}) {
      if (peek() == c) return ++at_, static_cast<char32_t>(c);
    }
    fail(fmt::format("unknown escape '\\{}'", peek()));
  }

  Part literal() {
    ++at_;
    std::string plain;
    while (peek() != '"') {
      if (!more() || peek() == '\n') fail("a literal does not end");
      append_utf8(plain, letter_or_escape());
    }
    ++at_;
    return Automaton::literal(plain);
  }
  Part char_class() {
    const bool negated = take("^");
    std::vector<std::pair<char32_t, char32_t>> ranges;
    while (peek() != ']') {
      if (!more()) fail("missing ']'");
      const char32_t first = letter_or_escape();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = letter_or_escape();
        if (last < first) fail("a range of characters is out of order");
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    if (!negated) return Automaton::code_points(ranges);
    const std::pair<char32_t, char32_t> any[] = {{0, 0x10ffff}};
    return subtract(Automaton::code_points(any), Automaton::code_points(ranges), context_.budget);
  }

  // <name> or <[id]>
  Part special() {
    const size_t begin = at_, end = text_.find('>', at_);
    if (end == std::string_view::npos) fail("missing '>'");
    const std::string_view token = text_.substr(at_, end + 1 - at_);
    at_ = end + 1;
    if (token.starts_with("<[") && token.ends_with("]>")) {
      const std::string digits(token.substr(2, token.size() - 4));
      if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) {
        fail_at(begin, "expected a token's id");
      }
      return builder_.special(std::stoi(digits));
    }
    const std::optional<TokenId> id = context_.special ? context_.special(token) : std::nullopt;
    if (!id) fail_at(begin, fmt::format("'{}' is not a token of the model", token));
    return builder_.special(*id);
  }

  Builder& builder_;
  const CompileContext& context_;
  std::map<std::string, Rule> rules_;
};

NodeId build(Builder& builder, std::string_view text, const CompileContext& context) {
  return Parser(builder, text, context).parse();
}

const SourceKind kind{.name = "gbnf", .help = "a grammar in llama.cpp's syntax", .build = build};
const Registry<SourceKind> registered{kind};

}  // namespace
}  // namespace sluice::grammar::gbnf
