// Grammars in Lark's syntax. There is no lexer: a text is in the grammar if any division into terminals is, with
// ignored terminals after each of them.
#include <fmt/core.h>

#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "grammar/lark/document.h"
#include "grammar/regex/char_set.h"
#include "grammar/regex/parser.h"
#include "grammar/source.h"
#include "grammar/text_reader.h"
#include "sluice/error.h"

namespace sluice::grammar::lark {
namespace {

using Kind = Expression::Kind;

constexpr int kDeepestTerminal = 200;  // terminals that use each other
constexpr int kMostCopies = 64;        // of an automaton that is repeated; more are counted by a node
// What was built: regular as long as it names no rule, schema or special token.
using Part = std::variant<Automaton, NodeId>;

class Maker {
 public:
  Maker(Builder& builder, std::string_view text, const CompileContext& context)
      : b_(builder), text_(text), context_(context), budget_(context.budget), document_(lark::parse(text, budget_)) {}

  NodeId make() {
    if (!document_.definitions.contains("start")) throw GrammarError("grammar: there is no rule 'start'");
    if (!document_.ignored.empty()) {
      std::vector<Automaton> ignored;
      for (const Expression& e : document_.ignored) ignored.push_back(regular(e, 0));
      skip_ = repeat(unite(ignored, budget_), 0, -1, budget_);
    }
    for (const auto& [name, d] : document_.definitions) {
      if (!lark::is_terminal(name)) nodes_[name] = b_.declare(name);
    }
    for (const auto& [name, d] : document_.definitions) {
      if (lark::is_terminal(name)) {
        terminal(name, d.at, 0);
      } else {
        b_.define(nodes_[name], d.lazy ? b_.regular(skipped(shortest(d, 0))) : node(part(d.body)));
      }
    }
    return nodes_["start"];
  }

 private:
  [[noreturn]] void fail(size_t at, const std::string& what) const { TextReader(text_).fail_at(at, what); }

  NodeId node(const Part& part) {
    const auto* id = std::get_if<NodeId>(&part);
    return id != nullptr ? *id : b_.regular(std::get<Automaton>(part));
  }
  Automaton skipped(const Automaton& terminal) { return skip_ ? concatenate(terminal, *skip_, budget_) : terminal; }
  NodeId skipped(NodeId node) {
    if (!skip_) return node;
    const NodeId parts[] = {node, b_.regular(*skip_)};
    return b_.sequence(parts);
  }

  // In a rule.
  Part part(const Expression& e) {
    budget_.step();
    switch (e.kind) {
      case Kind::kSequence:
      case Kind::kChoice:
        return join(e);
      case Kind::kRepeat: {
        const Part item = part(e.parts[0]);
        const auto* language = std::get_if<Automaton>(&item);
        if (language != nullptr && e.least <= kMostCopies && e.most <= kMostCopies) {
          return repeat(*language, e.least, e.most, budget_);
        }
        return b_.repeat(node(item), e.least, e.most);
      }
      case Kind::kName:
        if (!lark::is_terminal(e.text)) return rule(e);
        return skipped(regular(e, 0));
      case Kind::kSpecial:
        return skipped(special(e));
      case Kind::kJson:
        return skipped(schema(e));
      default:
        return skipped(regular(e, 0));
    }
  }
  Part join(const Expression& e) {
    std::vector<Part> parts;
    std::vector<Automaton> languages;
    for (const Expression& p : e.parts) {
      parts.push_back(part(p));
      if (const auto* language = std::get_if<Automaton>(&parts.back())) languages.push_back(*language);
    }
    if (languages.size() == parts.size()) return joined(e.kind, languages);
    std::vector<NodeId> nodes;
    for (const Part& p : parts) nodes.push_back(node(p));
    return e.kind == Kind::kChoice ? b_.choice(nodes) : b_.sequence(nodes);
  }
  Automaton joined(Kind kind, const std::vector<Automaton>& languages) {
    if (kind == Kind::kChoice) return unite(languages, budget_);
    Automaton all = Automaton::literal("");
    for (const Automaton& language : languages) all = concatenate(all, language, budget_);
    return all;
  }

  NodeId rule(const Expression& e) {
    const auto found = nodes_.find(e.text);
    if (found == nodes_.end()) fail(e.at, fmt::format("the rule '{}' is not defined", e.text));
    return found->second;
  }
  NodeId special(const Expression& e) {
    const std::string_view token = e.text;
    if (token.starts_with("<[") && token.ends_with("]>")) {
      const std::string digits(token.substr(2, token.size() - 4));
      if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) {
        fail(e.at, "expected one token's id; sets of tokens are not supported");
      }
      return b_.special(std::stoi(digits));
    }
    const std::optional<TokenId> id = context_.special ? context_.special(token) : std::nullopt;
    if (!id) fail(e.at, fmt::format("'{}' is not a special token of the model", token));
    return b_.special(*id);
  }
  NodeId schema(const Expression& e) {
    try {
      return build_source(b_, "json_schema", e.text, context_);
    } catch (const GrammarError& error) {
      fail(e.at, error.what());
    }
  }

  // In a terminal, where nothing is ignored.
  Automaton regular(const Expression& e, int depth) {
    budget_.step();
    switch (e.kind) {
      case Kind::kSequence:
      case Kind::kChoice: {
        std::vector<Automaton> languages;
        for (const Expression& p : e.parts) languages.push_back(regular(p, depth));
        return joined(e.kind, languages);
      }
      case Kind::kBoth: {
        Automaton all = regular(e.parts[0], depth);
        for (size_t i = 1; i < e.parts.size(); ++i) all = intersect(all, regular(e.parts[i], depth), budget_);
        return all;
      }
      case Kind::kNot:
        return subtract(any_text(), regular(e.parts[0], depth), budget_);
      case Kind::kRepeat:
        return repeat(regular(e.parts[0], depth), e.least, e.most, budget_);
      case Kind::kName:
        if (!lark::is_terminal(e.text)) fail(e.at, fmt::format("the rule '{}' cannot be part of a terminal", e.text));
        return terminal(e.text, e.at, depth);
      case Kind::kString:
        return e.any_case ? any_case(e.text) : Automaton::literal(e.text);
      case Kind::kRegex:
        return pattern(e);
      case Kind::kRange: {
        const std::pair<char32_t, char32_t> range[] = {{e.first, e.last}};
        return Automaton::code_points(range);
      }
      case Kind::kSubstring:
        return substring(e);
      case Kind::kSpecial:
        fail(e.at, "a special token cannot be part of a terminal");
      case Kind::kJson:
        fail(e.at, "%json cannot be part of a terminal");
    }
    fail(e.at, "unknown expression");
  }

  Automaton terminal(const std::string& name, size_t at, int depth) {
    if (const auto found = terminals_.find(name); found != terminals_.end()) return found->second;
    const auto d = document_.definitions.find(name);
    if (d == document_.definitions.end()) fail(at, fmt::format("the terminal '{}' is not defined", name));
    if (!under_way_.insert(name).second) fail(at, fmt::format("the terminal '{}' contains itself", name));
    if (depth >= kDeepestTerminal)
      fail(at, fmt::format("terminals use each other more than {} deep", kDeepestTerminal));
    const Automaton language = shortest(d->second, depth + 1);
    under_way_.erase(name);
    return terminals_.emplace(name, language).first->second;
  }
  // The body of a definition with its attributes: of a lazy one, the texts that do not begin with another one.
  Automaton shortest(const Definition& d, int depth) {
    Automaton all = regular(d.body, depth);
    if (d.suffix) all = concatenate(all, regular(*d.suffix, depth), budget_);
    if (!d.lazy) return all;
    const std::pair<char32_t, char32_t> any[] = {{0, 0x10ffff}};
    const Automaton more = repeat(Automaton::code_points(any), 1, -1, budget_);
    return subtract(all, concatenate(all, more, budget_), budget_);
  }

  Automaton pattern(const Expression& e) {
    try {
      // A terminal does not see what surrounds it.
      if (regex::parse(e.text, RegexSyntax::kPython, budget_).asserts) {
        fail(e.at, "anchors, word boundaries and lookaround are not supported");
      }
      return parse_regex(e.text, RegexSyntax::kPython, true, budget_);
    } catch (const GrammarError& error) {
      const std::string what = error.what();
      if (what.starts_with("grammar, line")) throw;
      fail(e.at, what);
    }
  }
  Automaton any_case(const std::string& text) {
    struct Reader : TextReader {
      using TextReader::character, TextReader::more;
      using TextReader::TextReader;
    };
    Automaton all = Automaton::literal("");
    for (Reader reader(text); reader.more();) {
      const char32_t c = reader.character();
      const CharSet cases = CharSet({{c, c}}).with_cases();
      all = concatenate(all, Automaton::code_points(cases.ranges()), budget_);
    }
    return all;
  }

  // %regex {"substring_chars": "abc"}: a part of a list of texts.
  Automaton substring(const Expression& e) {
    Json options;
    try {
      options = parse_json(e.text);
    } catch (const Error& error) {
      fail(e.at, error.what());
    }
    constexpr const char* kForms = "expected one of: substring_chars, substring_words, substring_chunks";
    if (options.size() != 1) fail(e.at, kForms);
    const std::string key = options.begin().key();
    const Json& value = options.begin().value();
    std::vector<std::string> chunks;
    if (key == "substring_chunks" && value.is_array()) {
      for (const Json& chunk : value) {
        if (!chunk.is_string()) fail(e.at, "substring_chunks: expected strings");
        chunks.push_back(chunk.get<std::string>());
      }
    } else if ((key == "substring_chars" || key == "substring_words") && value.is_string()) {
      chunks = divided(value.get_ref<const std::string&>(), key == "substring_words");
    } else {
      fail(e.at, kForms);
    }
    // From the last one: what may follow a chunk is a beginning of the rest.
    Automaton rest = Automaton::literal("");
    std::vector<Automaton> all = {rest};
    for (size_t i = chunks.size(); i-- > 0;) {
      const Automaton with = concatenate(Automaton::literal(chunks[i]), rest, budget_);
      all.push_back(with);
      const Automaton either[] = {Automaton::literal(""), with};
      rest = unite(either, budget_);
    }
    return determinize(unite(all, budget_), budget_);
  }
  // Characters, or words and what is between them.
  static std::vector<std::string> divided(const std::string& text, bool words) {
    const auto in_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80) != 0;
    };
    std::vector<std::string> all;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool continues = (text[i] & 0xc0) == 0x80 || (words && i > 0 && in_word(text[i]) && in_word(text[i - 1]));
      if (!continues || all.empty()) all.emplace_back();
      all.back() += text[i];
    }
    return all;
  }

  Builder& b_;
  const std::string_view text_;
  const CompileContext& context_;
  Budget& budget_;
  const lark::Document document_;
  std::optional<Automaton> skip_;  // what %ignore names, any number of times
  std::map<std::string, NodeId> nodes_;
  std::map<std::string, Automaton> terminals_;
  std::set<std::string> under_way_;
};

NodeId build(Builder& builder, std::string_view text, const CompileContext& context) {
  return Maker(builder, text, context).make();
}

const SourceKind kind{.name = "lark", .help = "a grammar in Lark's syntax", .build = build};
const Registry<SourceKind> registered{kind};

}  // namespace
}  // namespace sluice::grammar::lark
