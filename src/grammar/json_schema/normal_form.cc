// Goals to alternatives: what each keyword does to values of a type.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "grammar/json_schema/formats.h"
#include "grammar/json_schema/numbers.h"
#include "grammar/json_schema/schema.h"

namespace sluice::grammar::json_schema {
namespace {

constexpr int kMostForming = 6;          // normal forms within each other; each may need 1 MiB of stack
constexpr int kDeepestApplicator = 200;  // applicators within each other, as of references that lead to themselves
constexpr size_t kMostAlternatives = 4096;

void intersect_into(std::optional<Automaton>& into, const Automaton& with, Budget& budget) {
  into = into ? intersect(*into, with, budget) : with;
}

bool names_type(const std::string& name, Type type) {
  switch (type) {
    case Type::kNull:
      return name == "null";
    case Type::kTrue:
    case Type::kFalse:
      return name == "boolean";
    case Type::kNumber:
      return name == "number" || name == "integer";
    case Type::kString:
      return name == "string";
    case Type::kArray:
      return name == "array";
    case Type::kObject:
      return name == "object";
  }
  return false;
}

bool is_of(const Json& value, Type type) {
  switch (type) {
    case Type::kNull:
      return value.is_null();
    case Type::kTrue:
      return value.is_boolean() && value.get<bool>();
    case Type::kFalse:
      return value.is_boolean() && !value.get<bool>();
    case Type::kNumber:
      return value.is_number();
    case Type::kString:
      return value.is_string();
    case Type::kArray:
      return value.is_array();
    case Type::kObject:
      return value.is_object();
  }
  return false;
}

void at_least_count(Alternative& a, int64_t n) {
  a.least = std::max<int>(a.least, static_cast<int>(std::min<int64_t>(n, 1 << 30)));
}
void at_most_count(Alternative& a, int64_t n) {
  const int most = static_cast<int>(std::min<int64_t>(n, 1 << 30));
  a.most = a.most < 0 ? most : std::min(a.most, most);
}

// Whether there plainly is no such value.
bool is_empty(const Alternative& a) {
  if (a.most >= 0 && a.least > a.most) return true;
  if (a.most >= 0 && static_cast<int64_t>(a.required.size()) > a.most) return true;
  return (a.number && a.number->empty()) || (a.string && a.string->empty());
}

}  // namespace

Goal both(const Goal& a, const Goal& b) {
  Goal out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

void Document::add(Alternatives& out, Alternative one) {
  budget_.step(8);
  if (is_empty(one)) return;
  if (out.size() >= kMostAlternatives) throw GrammarError("the schema has too many alternatives");
  budget_.allocate(static_cast<int64_t>(sizeof(Alternative)) + 64);
  out.push_back(std::move(one));
}

const Alternatives& Document::normal_form(const Goal& goal) {
  std::unique_ptr<Alternatives>& form = forms_[goal];
  if (!form) {
    // Other values than the one at hand are evaluated apart from it.
    const Changed watched(watched_, 0), unseen(unseen_, 0), forming(forming_, forming_ + 1);
    Alternatives all;
    for (const Type type : kTypes) add(all, {.type = type});
    for (const Condition& condition : goal) all = apply(all, condition, 0);
    forms_[goal] = std::make_unique<Alternatives>(std::move(all));
  }
  return *forms_[goal];
}

// Schemas that refer to each other ask for each other's normal forms, for instance a oneOf of objects with members of
// its own kind.
bool Document::impossible(const Goal& goal) {
  const auto allows_nothing = [](const Condition& one) {
    return one.schema->is_boolean() && one.schema->get<bool>() == one.negated;
  };
  if (std::any_of(goal.begin(), goal.end(), allows_nothing)) return true;
  const auto found = forms_.find(goal);
  const bool being_made = found != forms_.end() && found->second == nullptr;
  if (being_made || forming_ >= kMostForming) return false;
  return normal_form(goal).empty();
}

Alternatives Document::apply(const Alternatives& to, const Condition& condition, int depth) {
  Alternatives out;
  for (const Alternative& one : to) {
    for (Alternative& next : apply_one(one, condition, depth)) add(out, std::move(next));
  }
  return out;
}

Alternatives Document::apply_one(const Alternative& to, const Condition& condition, int depth) {
  budget_.step(16);
  const Json& schema = *condition.schema;
  if (depth > kDeepestApplicator) throw GrammarError(path(schema) + ": leads to itself without an end");
  if (schema.is_boolean()) return schema.get<bool>() != condition.negated ? Alternatives{to} : Alternatives{};
  if (!schema.is_object()) throw GrammarError(path(schema) + ": expected a schema: an object or a boolean");
  return condition.negated ? negative(to, schema, depth) : positive(to, schema, depth);
}

int Document::count(const Json& schema, const char* keyword, int otherwise) const {
  const Json* value = member(schema, keyword);
  if (value == nullptr) return otherwise;
  const bool whole = value->is_number() && value->get<double>() == std::floor(value->get<double>());
  if (!whole || value->get<double>() < 0) refuse(schema, keyword, "expected a whole number of at least 0");
  return static_cast<int>(std::min(value->get<double>(), 1e9));
}

// Keywords of the standard that say something of values but are not among those that are applied.
void Document::check_annotations(const Json& schema) const {
  for (const char* keyword : {"disallow", "extends", "divisibleBy"}) {
    if (schema.contains(keyword)) refuse(schema, keyword, "is not supported");
  }
}

Alternatives Document::positive(const Alternative& to, const Json& schema, int depth) {
  check_annotations(schema);
  if (!has_unevaluated(schema)) return keywords(to, schema, depth);
  // Only what is evaluated within this schema counts.
  Alternatives all;
  {
    const Changed watched(watched_, 1), unseen(unseen_, 0);
    all = keywords(to, schema, depth);
  }
  return unevaluated(std::move(all), to, schema);
}

Alternatives Document::keywords(const Alternative& to, const Json& schema, int depth) {
  const Json* reference = member(schema, "$ref");
  const bool dynamic = schema.contains("$dynamicRef") || schema.contains("$recursiveRef");
  if (reference != nullptr && dynamic) refuse(schema, "$ref", "beside a dynamic reference is not supported");
  if (reference != nullptr || dynamic) {
    if (reference != nullptr && !reference->is_string()) refuse(schema, "$ref", "expected a string");
    const Json* target = dynamic ? dynamic_target(schema) : resolve(schema, reference->get<std::string>());
    if (target == nullptr)
      refuse(schema, "$ref", fmt::format("'{}' is not in the schema", reference->get<std::string>()));
    const Alternatives referred = apply_one(to, {target, false}, depth + 1);
    if (old_draft_ || schema.size() == 1) return referred;
    Alternatives out;
    for (const Alternative& one : referred) {
      Alternative next = one;
      if (restrict(next, schema)) add(out, std::move(next));
    }
    return dependent_schemas(conditional(out, schema, depth), schema, depth);
  }
  Alternative next = to;
  if (!restrict(next, schema)) return {};
  Alternatives out;
  add(out, std::move(next));
  return dependent_schemas(conditional(out, schema, depth), schema, depth);
}

// The keywords with subschemas of the same value.
Alternatives Document::conditional(const Alternatives& to, const Json& schema, int depth) {
  Alternatives out = to;
  if (const Json* constant = member(schema, "const")) {
    const Json& list = keep(Json::array({*constant}), schema);
    Alternatives next;
    for (const Alternative& one : out) {
      for (Alternative& value : values(one, schema, list, false, depth)) add(next, std::move(value));
    }
    out = std::move(next);
  }
  if (const Json* list = member(schema, "enum")) {
    if (!list->is_array()) refuse(schema, "enum", "expected an array");
    Alternatives next;
    for (const Alternative& one : out) {
      for (Alternative& value : values(one, schema, *list, false, depth)) add(next, std::move(value));
    }
    out = std::move(next);
  }
  const auto list = [&](const char* keyword) -> const Json* {
    const Json* value = member(schema, keyword);
    if (value != nullptr && (!value->is_array() || value->empty()))
      refuse(schema, keyword, "expected an array of schemas");
    return value;
  };
  if (const Json* all = list("allOf")) out = all_of(std::move(out), *all, false, depth);
  if (const Json* any = list("anyOf")) {
    out = watched_ > 0 ? any_together(out, schema, *any, depth) : any_of(out, *any, false, depth);
  }
  if (const Json* one = list("oneOf")) out = one_of(out, schema, *one, depth);
  if (const Json* inner = member(schema, "not")) out = apply(out, {inner, true}, depth + 1);
  const Json *if_ = member(schema, "if"), *then = member(schema, "then"), *otherwise = member(schema, "else");
  if (if_ != nullptr && (then != nullptr || otherwise != nullptr || watched_ > 0)) {
    Alternatives yes = apply(out, {if_, false}, depth + 1), no = apply(out, {if_, true}, depth + 1);
    if (then != nullptr) yes = apply(yes, {then, false}, depth + 1);
    if (otherwise != nullptr) no = apply(no, {otherwise, false}, depth + 1);
    out = std::move(yes);
    for (Alternative& one : no) add(out, std::move(one));
  }
  return out;
}

Alternatives Document::all_of(Alternatives to, const Json& list, bool negated, int depth) {
  for (const Json& schema : list) to = apply(to, {&schema, negated}, depth + 1);
  return to;
}

Alternatives Document::any_of(const Alternatives& to, const Json& list, bool negated, int depth) {
  Alternatives out;
  for (const Json& schema : list) {
    for (Alternative& one : apply(to, {&schema, negated}, depth + 1)) add(out, std::move(one));
  }
  return out;
}

// Each one without all the others, as far as these are not apart from it anyway.
Alternatives Document::one_of(const Alternatives& to, const Json& schema, const Json& list, int depth) {
  std::vector<Alternatives> each;
  for (const Json& option : list) each.push_back(apply(to, {&option, false}, depth + 1));
  Alternatives out;
  for (size_t i = 0; i < list.size(); ++i) {
    for (const Alternative& own : each[i]) {
      Alternatives rest = {own};
      for (size_t j = 0; j < list.size(); ++j) {
        budget_.step();
        const auto meets = [&](const Alternative& other) { return !apart(own, other); };
        if (j == i || std::none_of(each[j].begin(), each[j].end(), meets)) continue;
        try {
          rest = apply(rest, {&list[j], true}, depth + 1);
        } catch (const GrammarError& e) {
          refuse(schema, "oneOf",
                 fmt::format("[{}] and [{}] may both match, and that is not decided ({})", i, j, e.what()));
        }
      }
      for (Alternative& one : rest) add(out, std::move(one));
    }
  }
  return out;
}

Goal Document::rules_of(const MemberRules& rules, const std::string& name) {
  Goal goal;
  const auto found = rules.properties.find(name);
  if (found != rules.properties.end()) goal = found->second;
  bool known = found != rules.properties.end();
  for (const auto& [text, inner] : rules.patterns) {
    budget_.step(4);
    if (!pattern(text, "").matches(name)) continue;
    goal = both(goal, inner);
    known = true;
  }
  return known ? goal : rules.additional;
}

// Whether no value is in both, as far as that can be told quickly.
bool Document::apart(const Alternative& a, const Alternative& b) {
  budget_.step(16);
  if (a.type != b.type) return true;
  if ((a.most >= 0 && a.most < b.least) || (b.most >= 0 && b.most < a.least)) return true;
  if (a.type == Type::kNumber && a.number && b.number) return disjoint(*a.number, *b.number, budget_);
  if (a.type == Type::kString && a.string && b.string) return disjoint(*a.string, *b.string, budget_);
  if (a.type == Type::kObject) {
    const auto goal_of = [this](const Alternative& x, const std::string& name) {
      Goal goal;
      for (const MemberRules& rules : x.members) goal = both(goal, rules_of(rules, name));
      return goal;
    };
    std::set<std::string> names = a.required;
    names.insert(b.required.begin(), b.required.end());
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return impossible(both(goal_of(a, name), goal_of(b, name))); });
  }
  if (a.type == Type::kArray && std::min(a.least, b.least) > 0) {
    const auto first = [](const Alternative& x) {
      Goal goal;
      for (const ItemRules& rules : x.items) goal = both(goal, rules.prefix.empty() ? rules.rest : rules.prefix[0]);
      return goal;
    };
    return impossible(both(first(a), first(b)));
  }
  return false;
}

// The listed values of the alternative's type, or all others.
Alternatives Document::values(const Alternative& to, const Json& schema, const Json& list, bool negated, int depth) {
  const Changed unseen(unseen_, unseen_ + 1);
  std::vector<const Json*> same_type;
  for (const Json& value : list) {
    budget_.step(4);
    if (is_of(value, to.type)) same_type.push_back(&value);
  }
  if (same_type.empty()) return negated ? Alternatives{to} : Alternatives{};
  if (to.type == Type::kNull || to.type == Type::kTrue || to.type == Type::kFalse) {
    return negated ? Alternatives{} : Alternatives{to};
  }
  if (to.type == Type::kNumber || to.type == Type::kString) {
    std::vector<Automaton> texts;
    for (const Json* value : same_type) {
      if (to.type == Type::kNumber) {
        texts.push_back(equal_to(*value, budget_));
      } else {
        budget_.allocate(static_cast<int64_t>(64 * value->get_ref<const std::string&>().size() + 256));
        texts.push_back(Automaton::literal(value->get_ref<const std::string&>()));
      }
    }
    const Automaton listed = unite(texts, budget_);
    Alternative next = to;
    std::optional<Automaton>& own = to.type == Type::kNumber ? next.number : next.string;
    const Automaton all = own ? *own : to.type == Type::kNumber ? any_number() : any_text();
    own = negated ? subtract(all, listed, budget_) : own ? intersect(all, listed, budget_) : listed;
    Alternatives out;
    add(out, std::move(next));
    return out;
  }
  // A list or an object is what its parts are.
  Alternatives out;
  if (negated) out.push_back(to);
  for (const Json* value : same_type) {
    Json made = {{"type", value->is_array() ? "array" : "object"}};
    const char* bound = value->is_array() ? "maxItems" : "maxProperties";
    made[value->is_array() ? "minItems" : "minProperties"] = value->size();
    made[bound] = value->size();
    Json parts = value->is_array() ? Json::array() : Json::object();
    Json names = Json::array();
    for (const auto& [key, part] : value->items()) {
      if (value->is_array()) {
        parts.push_back({{"const", part}});
      } else {
        parts[key] = {{"const", part}};
        names.push_back(key);
      }
    }
    if (!parts.empty()) made[value->is_array() ? "prefixItems" : "properties"] = std::move(parts);
    if (!names.empty()) made["required"] = std::move(names);
    const Json& kept = keep(std::move(made), schema);
    if (negated) {
      out = apply(out, {&kept, true}, depth + 1);
    } else {
      for (Alternative& one : apply_one(to, {&kept, false}, depth + 1)) add(out, std::move(one));
    }
  }
  return out;
}

// Applies the keywords without subschemas of the same value. False: no value of this type satisfies them.
bool Document::restrict(Alternative& to, const Json& schema) {
  if (const Json* type = member(schema, "type")) {
    bool allowed = false, only_integers = true;
    const Json list = type->is_array() ? *type : Json::array({*type});
    for (const Json& name : list) {
      static const std::set<std::string> kNames = {"null",   "boolean", "number", "integer",
                                                   "string", "array",   "object", "any"};
      if (!name.is_string() || !kNames.contains(name.get<std::string>())) {
        refuse(schema, "type", "expected null, boolean, number, integer, string, array or object");
      }
      const auto& text = name.get_ref<const std::string&>();
      if (!names_type(text, to.type) && text != "any") continue;
      allowed = true;
      only_integers = only_integers && text == "integer";
    }
    if (!allowed) return false;
    if (to.type == Type::kNumber && only_integers) {
      intersect_into(to.number, plain_integers_ ? digits_only() : any_integer(), budget_);
    }
  }
  switch (to.type) {
    case Type::kNumber:
      restrict_number(to, schema);
      break;
    case Type::kString:
      restrict_string(to, schema);
      break;
    case Type::kArray:
      restrict_array(to, schema);
      break;
    case Type::kObject:
      restrict_object(to, schema);
      break;
    default:
      break;
  }
  return !is_empty(to);
}

void Document::restrict_number(Alternative& to, const Json& schema) {
  const auto number = [&](const char* keyword) -> const Json* {
    const Json* value = member(schema, keyword);
    if (value != nullptr && !value->is_number()) refuse(schema, keyword, "expected a number");
    return value;
  };
  // Draft 4 has booleans that make bounds exclusive.
  const auto flag = [&](const char* keyword) {
    const Json* value = member(schema, keyword);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  const auto exclusive = [&](const char* keyword) {
    const Json* value = member(schema, keyword);
    return value != nullptr && value->is_boolean() ? nullptr : number(keyword);
  };
  if (const Json* v = number("minimum")) {
    intersect_into(to.number, at_least(Decimal::of(*v), flag("exclusiveMinimum"), budget_), budget_);
  }
  if (const Json* v = number("maximum")) {
    intersect_into(to.number, at_most(Decimal::of(*v), flag("exclusiveMaximum"), budget_), budget_);
  }
  if (const Json* v = exclusive("exclusiveMinimum")) {
    intersect_into(to.number, at_least(Decimal::of(*v), true, budget_), budget_);
  }
  if (const Json* v = exclusive("exclusiveMaximum")) {
    intersect_into(to.number, at_most(Decimal::of(*v), true, budget_), budget_);
  }
  if (const Json* v = number("multipleOf")) {
    const Decimal divisor = Decimal::of(*v);
    if (divisor.negative || divisor.zero()) refuse(schema, "multipleOf", "expected a number above 0");
    try {
      intersect_into(to.number, multiples_of(divisor, budget_), budget_);
    } catch (const GrammarError& e) {
      refuse(schema, "multipleOf", e.what());
    }
  }
}

void Document::restrict_string(Alternative& to, const Json& schema) {
  at_least_count(to, count(schema, "minLength", 0));
  if (schema.contains("maxLength")) at_most_count(to, count(schema, "maxLength", 0));
  if (const Json* v = member(schema, "pattern")) {
    if (!v->is_string()) refuse(schema, "pattern", "expected a string");
    intersect_into(to.string, pattern(v->get<std::string>(), path(schema) + ".pattern"), budget_);
  }
  if (const Json* v = member(schema, "format")) {
    if (!v->is_string()) refuse(schema, "format", "expected a string");
    const Automaton* texts = asserts_format_ ? format(v->get<std::string>()) : nullptr;
    if (texts != nullptr) intersect_into(to.string, *texts, budget_);
  }
}

void Document::restrict_array(Alternative& to, const Json& schema) {
  at_least_count(to, count(schema, "minItems", 0));
  if (schema.contains("maxItems")) at_most_count(to, count(schema, "maxItems", 0));
  ItemRules rules{.prefix = {}, .rest = {}, .evaluates = evaluates()};
  const Json *prefix = member(schema, "prefixItems"), *items = member(schema, "items");
  if (prefix == nullptr && items != nullptr && items->is_array()) {
    prefix = items;
    items = member(schema, "additionalItems");
  }
  if (prefix != nullptr && !prefix->is_array()) refuse(schema, "prefixItems", "expected an array of schemas");
  for (size_t i = 0; prefix != nullptr && i < prefix->size(); ++i) rules.prefix.push_back({{&(*prefix)[i], false}});
  if (items != nullptr) rules.rest = {{items, false}};
  if (!rules.prefix.empty() || !rules.rest.empty()) to.items.push_back(std::move(rules));
  if (const Json* v = member(schema, "contains")) {
    Contains contains{.item = {{v, false}}, .least = count(schema, "minContains", 1), .most = -1};
    if (schema.contains("maxContains")) contains.most = count(schema, "maxContains", 0);
    // What holds nothing may still evaluate items.
    if (contains.least > 0 || contains.most >= 0 || watched_ > 0) to.contains.push_back(std::move(contains));
  }
  const Json* unique = member(schema, "uniqueItems");
  if (unique != nullptr && unique->is_boolean() && unique->get<bool>()) {
    to.unique = true;
    to.unique_path = path(schema) + ".uniqueItems";
  }
}

void Document::restrict_object(Alternative& to, const Json& schema) {
  at_least_count(to, count(schema, "minProperties", 0));
  if (schema.contains("maxProperties")) at_most_count(to, count(schema, "maxProperties", 0));
  const auto object = [&](const char* keyword) -> const Json* {
    const Json* value = member(schema, keyword);
    if (value != nullptr && !value->is_object()) refuse(schema, keyword, "expected an object");
    return value;
  };
  const auto names_of = [&](const Json& list, const char* keyword) {
    std::set<std::string> names;
    if (!list.is_array()) refuse(schema, keyword, "expected an array of strings");
    for (const Json& name : list) {
      if (!name.is_string()) refuse(schema, keyword, "expected an array of strings");
      names.insert(name.get<std::string>());
    }
    return names;
  };
  MemberRules rules{.properties = {}, .patterns = {}, .additional = {}, .evaluates = evaluates()};
  if (const Json* v = object("properties")) {
    for (const auto& [name, inner] : v->items()) {
      budget_.step(4);
      rules.properties[name] = {{&inner, false}};
    }
  }
  if (const Json* v = object("patternProperties")) {
    for (const auto& [text, inner] : v->items()) {
      pattern(text, path(schema) + ".patternProperties");
      rules.patterns.emplace_back(text, Goal{{&inner, false}});
    }
  }
  if (const Json* v = member(schema, "additionalProperties")) rules.additional = {{v, false}};
  if (!rules.properties.empty() || !rules.patterns.empty() || !rules.additional.empty()) {
    to.members.push_back(std::move(rules));
  }
  const Json* required = member(schema, "required");
  if (required != nullptr && !required->is_boolean()) to.required.merge(names_of(*required, "required"));
  for (const char* keyword : {"dependentRequired", "dependencies"}) {
    const Json* v = object(keyword);
    if (v == nullptr) continue;
    for (const auto& [name, list] : v->items()) {
      if (list.is_array()) to.implied[name].merge(names_of(list, keyword));
      if (list.is_string()) to.implied[name].insert(list.get<std::string>());
    }
  }
  if (const Json* v = member(schema, "propertyNames")) {
    Automaton names = Automaton::none();
    for (const Alternative& one : normal_form({{v, false}})) {
      if (one.type != Type::kString) continue;
      Automaton texts = one.string ? *one.string : any_text();
      if (one.least > 0 || one.most >= 0)
        texts = intersect(texts, text_of_length(one.least, one.most, budget_), budget_);
      const Automaton two[] = {names, texts};
      names = unite(two, budget_);
    }
    intersect_into(to.names, names, budget_);
  }
}

// A member that brings a schema with it: either it is absent, or it is there and the schema holds.
Alternatives Document::dependent_schemas(Alternatives to, const Json& schema, int depth) {
  for (const char* keyword : {"dependentSchemas", "dependencies"}) {
    const Json* v = member(schema, keyword);
    if (v == nullptr) continue;
    for (const auto& [name, inner] : v->items()) {
      if (inner.is_array() || inner.is_string()) continue;
      Alternatives next;
      for (const Alternative& one : to) {
        if (one.type != Type::kObject) {
          add(next, one);
          continue;
        }
        Alternative absent = one, present = one;
        absent.members.push_back({.properties = {{name, {{&kFalse, false}}}}, .patterns = {}, .additional = {}});
        if (!absent.required.contains(name)) add(next, std::move(absent));
        present.required.insert(name);
        for (Alternative& with : apply_one(present, {&inner, false}, depth + 1)) add(next, std::move(with));
      }
      to = std::move(next);
    }
  }
  return to;
}

}  // namespace sluice::grammar::json_schema
