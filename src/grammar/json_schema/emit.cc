#include "grammar/json_schema/emit.h"

#include <fmt/core.h>

#include <algorithm>

#include "grammar/counted_text.h"
#include "grammar/json_schema/distinct.h"
#include "grammar/json_schema/numbers.h"

namespace sluice::grammar {
namespace {

using namespace json_schema;

constexpr size_t kMostPatterns = 32;           // of one object: its keys fall into classes by what they match
constexpr size_t kMostClasses = 48;            // of keys that match the same patterns
constexpr size_t kMostDistinct = 256;          // values of items that must differ
constexpr int64_t kMostCountingStates = 2000;  // of a string's automaton that counts its characters, too
constexpr size_t kMostWays = 256;              // in which an object may have members that are not listed
constexpr size_t kMostContainsOfArray = 4;
constexpr int64_t kMostContains = 20'000;  // states of an array that counts some of its items

// One character of a JSON string in every spelling, without quotes.
const Automaton& string_character() {
  static const Automaton character = [] {
    Budget budget;
    return determinize(json_string_body(text_of_length(1, 1, budget), budget), budget);
  }();
  return character;
}

const Automaton& any_json_string() {
  static const Automaton strings = [] {
    Budget budget;
    return json_string(any_text(), budget);
  }();
  return strings;
}

class Emitter {
 public:
  Emitter(Builder& builder, Document& document, const JsonStyle& style)
      : builder_(builder), document_(document), budget_(document.budget()), style_(style) {
    const Automaton space = style.compact
                                ? Automaton::literal("")
                                : parse_regex(fmt::format("[ \\t]{{0,2}}(?:\\r?\\n[ \\t]{{0,{}}})?", kMostIndentation),
                                              RegexSyntax::kEcma, true, budget_);
    const auto regular = [&](const Automaton& before, const char* text, const Automaton& behind) {
      return builder_.regular(concatenate(concatenate(before, Automaton::literal(text), budget_), behind, budget_));
    };
    const Automaton none = Automaton::literal("");
    colon_ = regular(space, ":", space);
    comma_ = regular(space, ",", space);
    open_list_ = regular(none, "[", space);
    close_list_ = regular(space, "]", none);
    open_object_ = regular(none, "{", space);
    close_object_ = regular(space, "}", none);
    string_ = style_.string ? style_.string({}) : json_string_text(builder_, {}, budget_);
    number_ = builder_.regular(any_number());
  }

  NodeId value(const Goal& goal) {
    const auto [place, fresh] = values_.try_emplace(goal, 0);
    if (!fresh) return place->second;
    const NodeId declared = place->second = builder_.declare("value");
    todo_.push_back({goal, declared});
    return declared;
  }

  // The members of the objects among the root's values.
  NodeId root_members(const MemberStyle& style) {
    const auto value_of = [&](const Goal& goal, const std::string& name) {
      return style.value(forms(goal), "schema.properties." + name);
    };
    std::vector<NodeId> choices;
    const Alternatives alternatives = document_.normal_form(document_.root());
    for (const Alternative& one : alternatives) {
      if (one.type != Type::kObject) continue;
      if (!one.some.empty()) {
        throw GrammarError(
            "schema: a member that 'not' or 'oneOf' asks for is not supported among the arguments of a call");
      }
      Members members = members_of(one, style.key, value_of);
      members.colon = style.colon;
      members.separator = style.separator;
      if (members.least == 0 && one.required.empty()) choices.push_back(builder_.empty());
      members.least = std::max(members.least, 1);
      const NodeId parts[] = {style.first, builder_.members(std::move(members))};
      choices.push_back(builder_.sequence(parts));
    }
    if (choices.empty()) throw GrammarError("schema: allows no object");
    return builder_.choice(choices);
  }

  // Values are written one after the other, so that their nesting takes no stack.
  void finish() {
    while (!todo_.empty()) {
      const auto [goal, declared] = todo_.back();
      todo_.pop_back();
      try {
        std::vector<NodeId> choices;
        const Alternatives alternatives = document_.normal_form(goal);
        for (const Alternative& one : alternatives) choices.push_back(emit(one));
        builder_.define(declared, builder_.choice(choices));
      } catch (const GrammarError& e) {
        // Limits do not know where they are passed.
        const std::string what = e.what();
        if (what.starts_with("schema") || goal.empty()) throw;
        const std::string place = document_.path(*goal[0].schema);
        throw GrammarError((place.empty() ? "schema" : place) + ": " + what);
      }
    }
  }

 private:
  ValueForms forms(const Goal& goal) {
    static const Json kString = {{"type", "string"}};
    ValueForms forms;
    bool yes = false, no = false;
    const Alternatives alternatives = document_.normal_form(goal);
    for (const Alternative& a : alternatives) {
      const bool bounded = a.least > 0 || a.most >= 0;
      if (a.type == Type::kString) forms.strings.push_back({.texts = a.string, .least = a.least, .most = a.most});
      if (a.type == Type::kNumber) forms.number = true, forms.any_number |= !a.number;
      if (a.type == Type::kTrue) forms.boolean = yes = true;
      if (a.type == Type::kFalse) forms.boolean = no = true;
      if (a.type == Type::kArray) {
        forms.array = true;
        forms.any_array |= !bounded && a.items.empty() && a.contains.empty() && !a.unique;
      }
      if (a.type == Type::kObject) {
        forms.object = true;
        forms.any_object |= !bounded && a.members.empty() && a.required.empty() && !a.names && a.implied.empty();
      }
    }
    forms.any_boolean = yes && no;
    const Goal others = both(goal, {{&kString, true}});
    if (!document_.impossible(others)) forms.others = value(others);
    return forms;
  }

  NodeId emit(const Alternative& a) {
    switch (a.type) {
      case Type::kNull:
        return builder_.literal(style_.null);
      case Type::kTrue:
        return builder_.literal(style_.true_text);
      case Type::kFalse:
        return builder_.literal(style_.false_text);
      case Type::kNumber:
        return a.number ? builder_.regular(*a.number) : number_;
      case Type::kString:
        return string(a);
      case Type::kArray:
        return array(a);
      case Type::kObject:
        return object(a);
    }
    return builder_.nothing();
  }

  NodeId string(const Alternative& a) {
    const Strings strings = {.texts = a.string, .least = a.least, .most = a.most};
    if (!a.string && a.least == 0 && a.most < 0) return string_;
    return style_.string ? style_.string(strings) : json_string_text(builder_, strings, budget_);
  }

  Goal item(const Alternative& a, size_t i) const {
    Goal goal;
    for (const ItemRules& rules : a.items) goal = both(goal, i < rules.prefix.size() ? rules.prefix[i] : rules.rest);
    return goal;
  }

  NodeId list(NodeId inner) {
    const NodeId parts[] = {open_list_, inner, close_list_};
    return builder_.sequence(parts);
  }

  NodeId array(const Alternative& a) {
    if (a.unique && (a.most < 0 || a.most > 1)) return list(distinct_items(a));
    if (!a.contains.empty()) return list(counting_items(a));
    size_t prefix = 0;
    for (const ItemRules& rules : a.items) prefix = std::max(prefix, rules.prefix.size());
    if (a.most >= 0) prefix = std::min(prefix, static_cast<size_t>(a.most));
    const Goal rest = item(a, prefix);
    const int least = a.least, most = a.most;
    if (prefix == 0) {
      if (most != 0 && document_.impossible(rest)) {
        return least > 0 ? builder_.nothing() : list(builder_.empty());
      }
      return list(builder_.separated(value(rest), comma_, least, most));
    }
    const int n = static_cast<int>(prefix);
    NodeId tail = builder_.empty();
    if (most < 0 || most > n) {
      const NodeId further[] = {comma_, value(rest)};
      tail = builder_.repeat(builder_.sequence(further), std::max(least - n, 0), most < 0 ? -1 : most - n);
    } else if (least > n) {
      return builder_.nothing();
    }
    for (int i = n - 1; i >= 0; --i) {
      const NodeId one = value(item(a, static_cast<size_t>(i)));
      const NodeId with_comma[] = {comma_, one, tail}, first[] = {one, tail};
      const NodeId here = i > 0 ? builder_.sequence(with_comma) : builder_.sequence(first);
      // The list may end before item i.
      const NodeId optional[] = {builder_.empty(), here};
      tail = least <= i ? builder_.choice(optional) : here;
    }
    return list(tail);
  }

  // Items that must differ, of a finite set: each value is a class of members that may come once.
  NodeId distinct_items(const Alternative& a) {
    const bool alike = std::ranges::all_of(a.items, [](const ItemRules& rules) { return rules.prefix.empty(); });
    std::optional<std::vector<Automaton>> values;
    if (alike && a.contains.empty() && !style_.string) {
      values = distinct_values(document_.normal_form(item(a, 0)), kMostDistinct, budget_);
    }
    if (!values) {
      throw GrammarError(
          fmt::format("{}: is supported only for at most one item, or for items of at most {} values, "
                      "without lists and objects, 'prefixItems' and 'contains'",
                      a.unique_path, kMostDistinct));
    }
    Members members{.classes = {}, .separator = comma_, .least = a.least, .most = a.most, .keys_only = true};
    for (Automaton& texts : *values) {
      budget_.step(16);
      members.classes.push_back(
          {.key = std::move(texts), .value = builder_.empty(), .once = true, .required = false, .implies = {}});
    }
    return builder_.members(std::move(members));
  }

  // Items that are counted by what they satisfy: a node for each number of items and each number of every `contains`.
  NodeId counting_items(const Alternative& a) {
    const size_t kinds = a.contains.size();
    if (kinds > kMostContainsOfArray) {
      throw GrammarError(fmt::format("more than {} 'contains' of one array are not supported", kMostContainsOfArray));
    }
    size_t prefix = 0;
    for (const ItemRules& rules : a.items) prefix = std::max(prefix, rules.prefix.size());
    // From the last number on, a further item changes nothing.
    const int64_t items = a.most >= 0 ? a.most : std::max({int64_t{1}, int64_t{a.least}, static_cast<int64_t>(prefix)});
    std::vector<int64_t> steps = {1};  // of each count in the number of a node; the last one is the number of all
    for (const Contains& contains : a.contains) {
      const int64_t most = contains.most >= 0 ? contains.most : contains.least;
      if (most >= kMostContains / steps.back())
        throw GrammarError("'contains' with bounds this large is not supported");
      steps.push_back(steps.back() * (most + 1));
    }
    if ((items + 1) * steps.back() > kMostContains) {
      throw GrammarError("'contains' with bounds this large is not supported");
    }
    std::vector<NodeId> nodes;
    for (int64_t i = 0; i < (items + 1) * steps.back(); ++i) nodes.push_back(builder_.declare("items"));
    for (int64_t i = 0; i <= items; ++i) {
      for (int64_t counts = 0; counts < steps.back(); ++counts) {
        std::vector<NodeId> choices;
        if (i >= a.least && enough(a, steps, counts)) choices.push_back(builder_.empty());
        const bool full = a.most >= 0 && i == items;
        for (uint32_t counted = 0; !full && counted < 1u << kinds; ++counted) {
          Goal goal = item(a, static_cast<size_t>(i));
          const int64_t after = count_item(a, steps, counts, counted, goal);
          if (after < 0) continue;
          const NodeId next = nodes[static_cast<size_t>(std::min(i + 1, items) * steps.back() + after)];
          const NodeId parts[] = {i == 0 ? builder_.empty() : comma_, value(goal), next};
          choices.push_back(builder_.sequence(parts));
        }
        builder_.define(nodes[static_cast<size_t>(i * steps.back() + counts)], builder_.choice(choices));
      }
    }
    return nodes[0];
  }

  static bool enough(const Alternative& a, const std::vector<int64_t>& steps, int64_t counts) {
    for (size_t k = 0; k < a.contains.size(); ++k) {
      if (counts % steps[k + 1] / steps[k] < a.contains[k].least) return false;
    }
    return true;
  }

  // Takes an item that satisfies the `contains` whose bits are set in `counted`, and adds to its goal what that takes.
  // Others may be satisfied, too, if they have no upper bound. Returns the counts after it; -1: one is too many.
  static int64_t count_item(const Alternative& a, const std::vector<int64_t>& steps, int64_t counts, uint32_t counted,
                            Goal& goal) {
    int64_t after = counts;
    for (size_t k = 0; k < a.contains.size(); ++k) {
      const Contains& contains = a.contains[k];
      const bool at_last = counts % steps[k + 1] / steps[k] == steps[k + 1] / steps[k] - 1;
      if ((counted >> k & 1) != 0) {
        if (at_last && contains.most >= 0) return -1;
        goal = both(goal, contains.item);
        after += at_last ? 0 : steps[k];
      } else if (contains.most >= 0) {
        Goal other;
        for (const Condition& condition : contains.item) other.push_back({condition.schema, !condition.negated});
        goal = both(goal, other);
      }
    }
    return after;
  }

  // What all rules say of the value of a name.
  Goal member_goal(const Alternative& a, const std::string& name) {
    Goal goal;
    for (const MemberRules& rules : a.members) goal = both(goal, document_.rules_of(rules, name));
    return goal;
  }

  Automaton key(const Automaton& names, const std::string* name) {
    return style_.key ? style_.key(names, name) : json_string(names, budget_);
  }

  using ValueOf = std::function<NodeId(const Goal&, const std::string& name)>;

  NodeId object(const Alternative& a) {
    std::vector<NodeId> ways;
    for (const WaysOfSome& way : ways_of(a)) add_objects(way, ways);
    return builder_.choice(ways);
  }

  // An object in which members with listed names are some of those that must be there (Alternative::some), and members
  // with other names are `unlisted`. One member can be several of those.
  struct WaysOfSome {
    Alternative object;
    std::vector<SomeMember> unlisted{};
  };

  static void check_ways(size_t ways) {
    if (ways <= kMostWays) return;
    throw GrammarError(fmt::format("an object's members can meet 'not' or 'oneOf' in more than {} ways", kMostWays));
  }

  std::vector<WaysOfSome> ways_of(const Alternative& a) {
    std::vector<WaysOfSome> ways = {{.object = a}};
    ways[0].object.some.clear();
    for (const SomeMember& some : a.some) {
      std::vector<WaysOfSome> next;
      for (const WaysOfSome& way : ways) {
        for (const std::string& name : listed_names(way.object)) {
          budget_.step(16);
          if (!some.names.matches(name) || document_.impossible(both(member_goal(way.object, name), some.value))) {
            continue;
          }
          WaysOfSome listed = way;
          listed.object.required.insert(name);
          listed.object.members.push_back({.properties = {{name, some.value}}, .patterns = {}, .additional = {}});
          next.push_back(std::move(listed));
        }
        for (size_t i = 0; i < way.unlisted.size(); ++i) {
          Automaton names = intersect(way.unlisted[i].names, some.names, budget_);
          if (names.empty()) continue;
          next.push_back(way);
          next.back().unlisted[i] = {.names = std::move(names), .value = both(way.unlisted[i].value, some.value)};
        }
        next.push_back(way);
        next.back().unlisted.push_back(some);
      }
      ways = std::move(next);
      check_ways(ways.size());
    }
    return ways;
  }

  // Members that are not listed fall into classes. Each way to choose a class for each of `unlisted` is an object.
  void add_objects(const WaysOfSome& way, std::vector<NodeId>& ways) {
    const KeyText key_of = [this](const Automaton& names, const std::string* name) { return key(names, name); };
    const ValueOf value_of = [this](const Goal& goal, const std::string&) { return value(goal); };
    std::vector<std::vector<Members::Class>> classes;
    size_t choices = 1;
    for (const SomeMember& some : way.unlisted) {
      classes.push_back(classes_of(way.object, some, key_of, value_of));
      choices *= classes.back().size();
      check_ways(ways.size() + choices);
    }
    for (size_t choice = 0; choice < choices; ++choice) {
      Members members = members_of(way.object, key_of, value_of);
      size_t rest = choice;
      for (const std::vector<Members::Class>& some : classes) {
        members.classes.push_back(some[rest % some.size()]);
        rest /= some.size();
      }
      members.colon = colon_;
      members.separator = comma_;
      const NodeId parts[] = {open_object_, builder_.members(std::move(members)), close_object_};
      ways.push_back(builder_.sequence(parts));
    }
  }

  // The classes of names that are not listed, with a name and a value of `some`.
  std::vector<Members::Class> classes_of(const Alternative& a, const SomeMember& some, const KeyText& key_of,
                                         const ValueOf& value_of) {
    Alternative narrow = a;
    narrow.names = a.names ? intersect(*a.names, some.names, budget_) : some.names;
    narrow.members.push_back({.properties = {}, .patterns = {}, .additional = some.value});
    Members members;
    add_open_classes(narrow, listed_names(a), members, key_of, value_of);
    for (Members::Class& c : members.classes) c.required = true;
    return members.classes;
  }

  static std::set<std::string> listed_names(const Alternative& a) {
    std::set<std::string> names = a.required;
    for (const MemberRules& rules : a.members) {
      for (const auto& [name, goal] : rules.properties) names.insert(name);
    }
    for (const auto& [name, others] : a.implied) {
      names.insert(name);
      names.insert(others.begin(), others.end());
    }
    return names;
  }

  Members members_of(const Alternative& a, const KeyText& key_of, const ValueOf& value_of) {
    Members members{.classes = {}, .least = a.least, .most = a.most};
    const std::set<std::string> names = listed_names(a);
    std::map<std::string, int> numbers;
    for (const std::string& name : names) {
      const bool allowed = !a.names || a.names->matches(name);
      numbers[name] = static_cast<int>(members.classes.size());
      budget_.step(16);
      members.classes.push_back({.key = key_of(Automaton::literal(name), &name),
                                 .value = allowed ? value_of(member_goal(a, name), name) : builder_.nothing(),
                                 .once = true,
                                 .required = a.required.contains(name),
                                 .implies = {}});
    }
    for (const auto& [name, others] : a.implied) {
      for (const std::string& other : others) {
        members.classes[static_cast<size_t>(numbers[name])].implies.push_back(numbers[other]);
      }
    }
    add_open_classes(a, names, members, key_of, value_of);
    return members;
  }

  // Names that are not listed, by the patterns that they match.
  void add_open_classes(const Alternative& a, const std::set<std::string>& names, Members& members,
                        const KeyText& key_of, const ValueOf& value_of) {
    std::set<std::string> patterns;
    for (const MemberRules& rules : a.members) {
      for (const auto& [text, goal] : rules.patterns) patterns.insert(text);
    }
    if (patterns.size() > kMostPatterns) {
      throw GrammarError(
          fmt::format("more than {} patterns for the members of one object are not supported", kMostPatterns));
    }
    struct Part {
      Automaton texts;
      std::set<std::string> matched;
    };
    std::vector<Part> parts = {{a.names ? *a.names : any_text(), {}}};
    for (const std::string& text : patterns) {
      std::vector<Part> next;
      for (Part& part : parts) {
        const Automaton& pattern = document_.pattern(text, "");
        Part inside = {intersect(part.texts, pattern, budget_), part.matched};
        inside.matched.insert(text);
        if (!inside.texts.empty()) next.push_back(std::move(inside));
        part.texts = subtract(part.texts, pattern, budget_);
        if (!part.texts.empty()) next.push_back(std::move(part));
      }
      parts = std::move(next);
      if (parts.size() > kMostClasses) {
        throw GrammarError("patterns for the members of one object overlap in too many ways");
      }
    }
    std::vector<Automaton> listed;
    for (const std::string& name : names) listed.push_back(Automaton::literal(name));
    const Automaton all_listed = unite(listed, budget_);
    for (const Part& part : parts) {
      Goal goal;
      for (const MemberRules& rules : a.members) {
        bool known = false;
        for (const auto& [text, inner] : rules.patterns) {
          if (part.matched.contains(text)) goal = both(goal, inner), known = true;
        }
        if (!known) goal = both(goal, rules.additional);
      }
      if (document_.impossible(goal)) continue;
      const Automaton keys = names.empty() ? part.texts : subtract(part.texts, all_listed, budget_);
      if (keys.empty()) continue;
      const Automaton texts = key_of(keys, nullptr);
      if (texts.empty()) continue;
      members.classes.push_back(
          {.key = texts, .value = value_of(goal, "*"), .once = false, .required = false, .implies = {}});
    }
  }

  Builder& builder_;
  Document& document_;
  Budget& budget_;
  const JsonStyle& style_;
  NodeId colon_ = 0, comma_ = 0, open_list_ = 0, close_list_ = 0, open_object_ = 0, close_object_ = 0;
  NodeId string_ = 0, number_ = 0;
  std::map<Goal, NodeId> values_;
  std::vector<std::pair<Goal, NodeId>> todo_;
};

}  // namespace

NodeId json_string_text(Builder& builder, const Strings& strings, Budget& budget) {
  const bool bounded = strings.least > 0 || strings.most >= 0;
  if (!strings.texts && !bounded) return builder.regular(any_json_string());
  if (strings.texts) {
    const int64_t counting_states = int64_t{strings.texts->states()} * strings.most;
    const bool counts = strings.most >= 0 && counting_states > kMostCountingStates;
    Automaton texts = *strings.texts;
    if (bounded) texts = intersect(texts, text_of_length(strings.least, counts ? -1 : strings.most, budget), budget);
    if (!counts) return builder.regular(json_string(texts, budget));
    const NodeId parts[] = {builder.literal("\""), builder.counted(counted_json_string(texts, strings.most, budget)),
                            builder.literal("\"")};
    return builder.sequence(parts);
  }
  const NodeId parts[] = {builder.literal("\""),
                          builder.repeat(builder.regular(string_character()), strings.least, strings.most),
                          builder.literal("\"")};
  return builder.sequence(parts);
}

NodeId json_text(Builder& builder, const Json& schema, const JsonStyle& style, Budget& budget) {
  Document document(schema, budget);
  Emitter emitter(builder, document, style);
  const NodeId value = emitter.value(document.root());
  emitter.finish();
  return value;
}

NodeId members_text(Builder& builder, const Json& schema, const JsonStyle& style, const MemberStyle& members,
                    Budget& budget) {
  Document document(schema, budget);
  Emitter emitter(builder, document, style);
  const NodeId node = emitter.root_members(members);
  emitter.finish();
  return node;
}

}  // namespace sluice::grammar
