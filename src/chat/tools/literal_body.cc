// Calls whose arguments are literals: f(a=1, b="x") in Python, call:f{a:1,b:<|"|>x<|"|>} in Gemma's notation.
#include <fmt/core.h>

#include <array>
#include <utility>

#include "chat/tools/call_format.h"
#include "chat/tools/json_pieces.h"
#include "chat/tools/literal_reader.h"
#include "grammar/json_schema/emit.h"

namespace sluice {
namespace {

using namespace grammar;

constexpr size_t kLongestHead = 512;  // bytes of a call up to its arguments

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || static_cast<unsigned char>(c) >= 0x80;
}

// What comes before the arguments.
struct Head {
  std::string_view prefix;  // before the name
  char open;                // behind it
};

class LiteralCallReader final : public BodyReader {
 public:
  LiteralCallReader(Head head, LiteralNotation notation)
      : head_(head), notation_(notation), arguments_(LiteralReader::members(notation)) {}

  Result read(std::string_view text, bool last, CallSink& sink) override {
    size_t used = 0;
    std::string json;
    if (!begun_) {
      // More text changes nothing about what these bytes tell.
      const State state = head(text.substr(0, kLongestHead), sink, used);
      if (state == State::kMore && (last || text.size() >= kLongestHead)) return {State::kOther, 0};
      if (state != State::kDone) return {state, 0};
      begun_ = true;
      json += '{';
    }
    used += arguments_.read(text.substr(used), json);
    if (last && !arguments_.done()) arguments_.finish(json);
    if (!json.empty()) sink.arguments(std::move(json));
    return {arguments_.done() ? State::kDone : State::kMore, used};
  }

 private:
  // Reads the prefix, the name and the opening bracket, and looks whether arguments with names follow.
  State head(std::string_view text, CallSink& sink, size_t& used) const {
    size_t at = 0;
    const auto skip_space = [&] {
      while (at < text.size() && is_space(text[at])) ++at;
    };
    const auto skip_name = [&] {
      while (at < text.size() && is_name(text[at])) ++at;
    };
    skip_space();
    const std::string_view rest = text.substr(at);
    if (!rest.starts_with(head_.prefix)) return head_.prefix.starts_with(rest) ? State::kMore : State::kOther;
    const size_t name = at += head_.prefix.size();
    skip_name();
    const size_t name_end = at;
    skip_space();
    if (at == text.size()) return State::kMore;
    if (name_end == name || text[at] != head_.open) return State::kOther;
    const size_t behind = ++at;
    skip_space();
    if (at == text.size()) return State::kMore;
    if (text[at] != notation_.close && (notation_.quote.empty() || text[at] != notation_.quote[0])) {
      const size_t key = at;
      skip_name();
      skip_space();
      if (at == text.size()) return State::kMore;
      if (at == key || text[at] != notation_.assign) return State::kOther;
    }
    const std::string_view called = text.substr(name, name_end - name);
    if (!sink.takes(called)) return State::kOther;
    sink.begin(std::string(called), "");
    used = behind;
    return State::kDone;
  }

  Head head_;
  LiteralNotation notation_;
  LiteralReader arguments_;
  bool begun_ = false;
};

// Grammars of the literals.
class Notation {
 public:
  virtual ~Notation() = default;
  // The members of an object, and what its names must match.
  virtual NodeId members(Builder& b, const Json& schema, const CompileContext& context) const = 0;

 protected:
  static NodeId join(Builder& b, std::initializer_list<NodeId> parts) {
    return b.sequence({parts.begin(), parts.size()});
  }

  static Automaton bare_key(const Automaton& names, const std::string* name, const char* pattern, Budget& budget) {
    const Automaton allowed = intersect(names, parse_regex(pattern, RegexSyntax::kEcma, true, budget), budget);
    if (allowed.empty() && name != nullptr) {
      throw GrammarError(
          fmt::format("schema.properties.{}: this name cannot be written as the name of an argument", *name));
    }
    return allowed;
  }

  static NodeId whole_members(Builder& b, const Json& schema, const JsonStyle& style, const KeyText& key,
                              std::array<std::string_view, 2> marks, Budget& budget) {
    const auto value = [&](const ValueForms& forms, const std::string&) {
      std::vector<NodeId> choices;
      if (forms.others) choices.push_back(*forms.others);
      for (const Strings& strings : forms.strings) choices.push_back(style.string(strings));
      return b.choice(choices);
    };
    return members_text(b, schema, style,
                        {.key = key,
                         .value = value,
                         .first = b.empty(),
                         .colon = b.literal(marks[0]),
                         .separator = b.literal(marks[1])},
                        budget);
  }
};

class PythonNotation final : public Notation {
 public:
  // JSON's strings are strings of Python, as the reader takes them.
  NodeId members(Builder& b, const Json& schema, const CompileContext& context) const override {
    Budget& budget = context.budget;
    const JsonStyle style{.null = "None", .true_text = "True", .false_text = "False", .string = [&](const Strings& s) {
                            return json_string_text(b, s, budget);
                          }};
    const auto key = [&](const Automaton& names, const std::string* name) {
      return bare_key(names, name, "[A-Za-z_][A-Za-z0-9_.\\-]*", budget);
    };
    return whole_members(b, schema, style, key, {"=", ", "}, budget);
  }
};

class GemmaNotation final : public Notation {
 public:
  explicit GemmaNotation(std::string_view quote) : quote_(quote) {}

  NodeId members(Builder& b, const Json& schema, const CompileContext& context) const override {
    Budget& budget = context.budget;
    const auto key = [&](const Automaton& names, const std::string* name) {
      return bare_key(names, name, "[A-Za-z0-9_.\\-]+", budget);
    };
    const JsonStyle style{
        .compact = true, .string = [&](const Strings& s) { return string(b, s, context); }, .key = key};
    return whole_members(b, schema, style, key, {":", ","}, budget);
  }

 private:
  // The mark around strings is a special token of some vocabularies.
  NodeId string(Builder& b, const Strings& strings, const CompileContext& context) const {
    Budget& budget = context.budget;
    const std::optional<TokenId> token = context.special ? context.special(quote_) : std::nullopt;
    const NodeId quotes[] = {b.literal(quote_), token ? b.special(*token) : b.nothing()};
    const NodeId quote = b.choice(quotes);
    const bool bounded = strings.least > 0 || strings.most >= 0;
    if (!strings.texts && !bounded) {
      std::vector<Builder::End> ends = {{.bytes = quote_, .special = {}, .then = b.empty()}};
      if (token) ends.push_back({.bytes = {}, .special = token, .then = b.empty()});
      return join(b, {quote, b.free_text(std::move(ends), true)});
    }
    const Automaton any = any_text();
    Automaton texts = strings.texts ? *strings.texts : any;
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget), budget);
    const Automaton marked = concatenate(concatenate(any, Automaton::literal(quote_), budget), any, budget);
    return join(b, {quote, b.regular(subtract(texts, marked, budget)), quote});
  }

  const std::string quote_;
};

class LiteralBody final : public CallBody {
 public:
  LiteralBody(Head head, LiteralNotation notation, std::unique_ptr<const Notation> grammar)
      : head_(head), notation_(notation), grammar_(std::move(grammar)) {}

  std::unique_ptr<BodyReader> reader(const ToolFunctions&) const override {
    return std::make_unique<LiteralCallReader>(head_, notation_);
  }

  NodeId build(Builder& b, const ToolFunction& function, const CompileContext& context) const override {
    for (const char c : function.name) {
      if (!is_name(c)) {
        throw GrammarError(
            fmt::format("the function's name '{}' cannot be written as a name in a call", function.name));
      }
    }
    const Json schema = arguments_schema(function);
    const NodeId parts[] = {b.literal(std::string(head_.prefix) + function.name + head_.open),
                            grammar_->members(b, schema, context), b.literal(std::string(1, notation_.close))};
    return b.sequence(parts);
  }

 private:
  const Head head_;
  const LiteralNotation notation_;
  const std::unique_ptr<const Notation> grammar_;
};

}  // namespace

std::shared_ptr<const CallBody> python_body() {
  return std::make_shared<const LiteralBody>(Head{"", '('}, LiteralNotation{}, std::make_unique<PythonNotation>());
}

std::shared_ptr<const CallBody> gemma_body(std::string_view quote) {
  return std::make_shared<const LiteralBody>(Head{"call:", '{'},
                                             LiteralNotation{.quote = quote, .assign = ':', .close = '}'},
                                             std::make_unique<GemmaNotation>(quote));
}

}  // namespace sluice
