// The grammar of calls whose parameters are in tags.
#include <fmt/core.h>

#include "chat/tools/json_pieces.h"
#include "chat/tools/tagged_body.h"
#include "grammar/json_schema/emit.h"

namespace sluice {
namespace {

using namespace grammar;

// White space that JSON and the parser leave out around a value.
constexpr const char* kSpace = "[ \\t\\r\\n]*";

class TaggedGrammar {
 public:
  TaggedGrammar(Builder& builder, const TaggedCallMarks& marks, const CompileContext& context)
      : b_(builder), marks_(marks), context_(context), budget_(context.budget) {
    const std::string_view end = trimmed(marks.value_end);
    const size_t at = marks.value_end.find(end);
    end_ = end;
    before_end_ = marks.value_end.substr(0, at);
    behind_end_ = marks.value_end.substr(at + end.size());
    const Automaton any = any_text();
    has_end_ = concatenate(concatenate(any, Automaton::literal(end_), budget_), any, budget_);
    names_ = parse_regex("[^<>\"\\r\\n\\t ](?:[^<>\"\\r\\n]*[^<>\"\\r\\n\\t ])?", RegexSyntax::kEcma, true, budget_);
  }

  NodeId call(const ToolFunction& function) {
    if (!names_.matches(function.name)) {
      throw GrammarError(fmt::format("the function's name '{}' cannot be written in tags", function.name));
    }
    const JsonStyle inner{.string = [this](const Strings& s) { return json_string_node(s); },
                          .key = [this](const Automaton& names, const std::string*) { return json_key(names); }};
    const MemberStyle members{
        .key = [this](const Automaton& names, const std::string* name) { return key(names, name); },
        .value = [this](const ValueForms& forms, const std::string& path) { return value(forms, path); },
        .first = mark(marks_.parameter_begin),
        .colon = mark(marks_.parameter_end),
        .separator = join({b_.literal(marks_.separator), mark(marks_.parameter_begin)})};
    const Json schema = arguments_schema(function);
    return join({mark(marks_.name_begin), b_.literal(function.name), mark(marks_.name_end),
                 members_text(b_, schema, inner, members, budget_), mark(marks_.body_end)});
  }

 private:
  NodeId mark(std::string_view text) { return build_mark(b_, text, context_); }
  NodeId join(std::initializer_list<NodeId> parts) { return b_.sequence({parts.begin(), parts.size()}); }

  Automaton key(const Automaton& names, const std::string* name) {
    const Automaton allowed = intersect(names, names_, budget_);
    if (allowed.empty() && name != nullptr) {
      throw GrammarError(fmt::format("schema.properties.{}: this name cannot be written in tags", *name));
    }
    return allowed;
  }

  NodeId value(const ValueForms& forms, const std::string& path) {
    std::vector<NodeId> choices;
    if (forms.others) {
      choices.push_back(join({mark(marks_.value_begin), *forms.others, mark(marks_.value_end)}));
    }
    const std::string& begin = marks_.string_begin.empty() ? marks_.value_begin : marks_.string_begin;
    for (const Strings& strings : forms.strings) {
      choices.push_back(join({mark(begin), text(strings, forms, path)}));
    }
    return b_.choice(choices);
  }

  // A string as it is, up to the end of the value.
  NodeId text(const Strings& strings, const ValueForms& forms, const std::string& path) {
    const std::vector<Automaton> taken = marks_.string_begin.empty() ? other_texts(forms) : std::vector<Automaton>();
    const bool bounded = strings.least > 0 || strings.most >= 0;
    if (!strings.texts && !bounded && taken.empty()) {
      const NodeId behind = b_.literal(behind_end_);
      std::vector<Builder::End> ends = {{.bytes = before_end_ + end_, .special = {}, .then = behind}};
      if (!before_end_.empty()) {
        ends.push_back({.bytes = end_, .special = {}, .then = b_.nothing()});
      } else if (const auto token = context_.special ? context_.special(end_) : std::nullopt) {
        ends.push_back({.bytes = {}, .special = token, .then = behind});
      }
      return b_.free_text(std::move(ends), true);
    }
    Automaton texts = strings.texts ? *strings.texts : any_text();
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget_), budget_);
    texts = subtract(texts, has_end_, budget_);
    for (const Automaton& other : taken) texts = subtract(texts, other, budget_);
    if (texts.empty() && !forms.others && forms.strings.size() == 1) {
      throw GrammarError(fmt::format("{}: none of its strings can be written before {}", path, end_));
    }
    return join({b_.regular(texts), mark(marks_.value_end)});
  }

  // Texts that the parser takes for values of other types, where the schema does not allow each of these.
  std::vector<Automaton> other_texts(const ValueForms& forms) {
    std::vector<Automaton> all;
    const auto add = [&](bool there, bool any, const char* pattern) {
      if (!there || any) return;
      all.push_back(parse_regex(fmt::format("{}(?:{}){}", kSpace, pattern, kSpace), RegexSyntax::kEcma, true, budget_));
    };
    add(forms.number, forms.any_number, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?");
    add(forms.boolean, forms.any_boolean, "true|false|True|False");
    add(forms.array, forms.any_array, "[\\[(][^]*");
    add(forms.object, forms.any_object, "\\{[^]*");
    return all;
  }

  // Strings within JSON do not hold the end of the value either: "\u003c" and "\/" are other ways to write it.
  NodeId json_string_node(const Strings& strings) {
    const bool bounded = strings.least > 0 || strings.most >= 0;
    if (!strings.texts && bounded) {
      const Automaton character = json_string_body(text_of_length(1, 1, budget_), budget_);
      const NodeId one = b_.regular(subtract(character, Automaton::literal(end_.substr(0, 1)), budget_));
      return join({b_.literal("\""), b_.repeat(one, strings.least, strings.most), b_.literal("\"")});
    }
    Automaton texts = strings.texts ? *strings.texts : any_text();
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget_), budget_);
    return b_.regular(subtract(json_string(texts, budget_), has_end_, budget_));
  }
  Automaton json_key(const Automaton& names) { return subtract(json_string(names, budget_), has_end_, budget_); }

  Builder& b_;
  const TaggedCallMarks& marks_;
  const CompileContext& context_;
  Budget& budget_;
  std::string end_, before_end_, behind_end_;
  Automaton has_end_ = Automaton::none(), names_ = Automaton::none();
};

}  // namespace

grammar::NodeId build_tagged_call(grammar::Builder& builder, const TaggedCallMarks& marks, const ToolFunction& function,
                                  const grammar::CompileContext& context) {
  return TaggedGrammar(builder, marks, context).call(function);
}

}  // namespace sluice
