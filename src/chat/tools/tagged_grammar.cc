// The grammar of calls whose parameters are in tags.
#include <fmt/core.h>

#include "chat/tools/json_pieces.h"
#include "chat/tools/tagged_body.h"
#include "grammar/json_schema/emit.h"

namespace sluice {
namespace {

using namespace grammar;

// What is made once may cost what it needs.
Budget unlimited() { return Budget({.fuel = 1'000'000'000, .bytes = 1 << 30, .time = std::chrono::minutes(10)}); }

Automaton containing(std::string_view text, Budget& budget) {
  return concatenate(concatenate(any_text(), Automaton::literal(text), budget), any_text(), budget);
}

class TaggedGrammar {
 public:
  TaggedGrammar(Builder& builder, const TaggedCallMarks& marks, const TagLanguages& languages,
                const CompileContext& context)
      : b_(builder), marks_(marks), languages_(languages), context_(context), budget_(context.budget) {
    const size_t at = marks.value_end.find(languages.end());
    before_end_ = marks.value_end.substr(0, at);
    behind_end_ = marks.value_end.substr(at + languages.end().size());
  }

  NodeId call(const ToolFunction& function) {
    if (!languages_.names().matches(function.name)) {
      throw GrammarError(fmt::format("the function's name '{}' cannot be written in tags", function.name));
    }
    const JsonStyle inner{.string = [this](const Strings& s) { return json_string_node(s); },
                          .key = [this](const Automaton& names, const std::string*) { return json_text_of(names); }};
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
    const Automaton allowed = intersect(names, languages_.names(), budget_);
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
    const unsigned taken = marks_.string_begin.empty() ? taken_types(forms) : 0;
    const bool bounded = strings.least > 0 || strings.most >= 0;
    const std::string& end = languages_.end();
    if (!strings.texts && !bounded && taken == 0) {
      const NodeId behind = b_.literal(behind_end_);
      std::vector<Builder::End> ends = {{.bytes = before_end_ + end, .special = {}, .then = behind}};
      if (!before_end_.empty()) {
        ends.push_back({.bytes = end, .special = {}, .then = b_.nothing()});
      } else if (const auto token = context_.special ? context_.special(end) : std::nullopt) {
        ends.push_back({.bytes = {}, .special = token, .then = behind});
      }
      for (const std::string& text : languages_.forgotten()) {
        ends.push_back({.bytes = text, .special = {}, .then = b_.nothing()});
      }
      return b_.free_text(std::move(ends), true);
    }
    Automaton texts = languages_.other_texts(taken);
    if (strings.texts) texts = intersect(*strings.texts, texts, budget_);
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget_), budget_);
    if (texts.empty() && !forms.others && forms.strings.size() == 1) {
      throw GrammarError(fmt::format("{}: none of its strings can be written before {}", path, end));
    }
    return join({b_.regular(texts), mark(marks_.value_end)});
  }

  // The types whose values the parser would find in a text, where the schema does not allow each of these values.
  static unsigned taken_types(const ValueForms& forms) {
    return (forms.number && !forms.any_number ? TagLanguages::kNumber : 0) |
           (forms.boolean && !forms.any_boolean ? TagLanguages::kBoolean : 0) |
           (forms.array && !forms.any_array ? TagLanguages::kArray : 0) |
           (forms.object && !forms.any_object ? TagLanguages::kObject : 0);
  }

  // Strings within JSON do not hold the end of the value either: "\u003c" and "\/" are other ways to write it.
  NodeId json_string_node(const Strings& strings) {
    const bool bounded = strings.least > 0 || strings.most >= 0;
    if (!strings.texts && !bounded) return b_.regular(languages_.json_string());
    if (!strings.texts) {
      const NodeId one = b_.regular(languages_.json_character());
      return join({b_.literal("\""), b_.repeat(one, strings.least, strings.most), b_.literal("\"")});
    }
    Automaton texts = *strings.texts;
    if (bounded) texts = intersect(texts, text_of_length(strings.least, strings.most, budget_), budget_);
    return b_.regular(json_text_of(texts));
  }
  Automaton json_text_of(const Automaton& texts) {
    return subtract(json_string(texts, budget_), languages_.with_end(), budget_);
  }

  Builder& b_;
  const TaggedCallMarks& marks_;
  const TagLanguages& languages_;
  const CompileContext& context_;
  Budget& budget_;
  std::string before_end_, behind_end_;  // white space around the end of a value
};

}  // namespace

template <class Make>
Automaton TagLanguages::once(int key, Make make) const {
  const std::scoped_lock lock(mutex_);
  const auto found = made_.find(key);
  if (found != made_.end()) return found->second;
  Budget budget = unlimited();
  return made_.emplace(key, make(budget)).first->second;
}

Automaton TagLanguages::with_end() const {
  return once(-1, [&](Budget& budget) { return containing(end_, budget); });
}

Automaton TagLanguages::names() const {
  return once(-2, [](Budget& budget) {
    return parse_regex("[^<>\"\\r\\n\\t ](?:[^<>\"\\r\\n]*[^<>\"\\r\\n\\t ])?", RegexSyntax::kEcma, true, budget);
  });
}

Automaton TagLanguages::json_string() const {
  return once(-3, [&](Budget& budget) {
    return determinize(subtract(grammar::json_string(any_text(), budget), containing(end_, budget), budget), budget);
  });
}

Automaton TagLanguages::json_character() const {
  return once(-4, [&](Budget& budget) {
    const Automaton any = json_string_body(text_of_length(1, 1, budget), budget);
    return determinize(subtract(any, Automaton::literal(end_.substr(0, 1)), budget), budget);
  });
}

Automaton TagLanguages::other_texts(unsigned types) const {
  return once(static_cast<int>(types), [&](Budget& budget) {
    Automaton texts = subtract(any_text(), containing(end_, budget), budget);
    for (const std::string& text : forgotten_) texts = subtract(texts, containing(text, budget), budget);
    const auto exclude = [&](unsigned type, const char* pattern) {
      if ((types & type) == 0) return;
      const std::string spaced = fmt::format("[ \\t\\r\\n]*(?:{})[ \\t\\r\\n]*", pattern);
      texts = subtract(texts, parse_regex(spaced, RegexSyntax::kEcma, true, budget), budget);
    };
    exclude(kNumber, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?");
    exclude(kBoolean, "true|false|True|False");
    exclude(kArray, "[\\[(][^]*");
    exclude(kObject, "\\{[^]*");
    return determinize(texts, budget);
  });
}

grammar::NodeId build_tagged_call(grammar::Builder& builder, const TaggedCallMarks& marks,
                                  const TagLanguages& languages, const ToolFunction& function,
                                  const grammar::CompileContext& context) {
  return TaggedGrammar(builder, marks, languages, context).call(function);
}

}  // namespace sluice
