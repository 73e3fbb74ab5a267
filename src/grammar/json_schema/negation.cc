// The values that a schema does not allow: for each keyword, those that violate it.
#include <fmt/core.h>

#include <algorithm>

#include "grammar/json_schema/formats.h"
#include "grammar/json_schema/numbers.h"
#include "grammar/json_schema/schema.h"

namespace sluice::grammar::json_schema {
namespace {

Automaton without(const std::optional<Automaton>& all, const Automaton& otherwise, const Automaton& part,
                  Budget& budget) {
  return subtract(all ? *all : otherwise, part, budget);
}

}  // namespace

Alternatives Document::negative(const Alternative& to, const Json& schema, int depth) {
  check_annotations(schema);
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"}) {
    if (schema.contains(keyword)) refuse(schema, keyword, "within 'not' is not supported");
  }
  const Changed unseen(unseen_, unseen_ + 1);
  Alternatives out;
  const auto add_all = [&](Alternatives more) {
    for (Alternative& one : more) add(out, std::move(one));
  };
  if (const Json* reference = member(schema, "$ref")) {
    const Json* target = reference->is_string() ? resolve(schema, reference->get<std::string>()) : nullptr;
    if (target == nullptr) refuse(schema, "$ref", "is not in the schema");
    add_all(apply_one(to, {target, true}, depth + 1));
    if (old_draft_ || schema.size() == 1) return out;
  }
  // What the type alone forbids.
  if (const Json* type = member(schema, "type")) {
    const Json& only_type = keep({{"type", *type}}, schema);
    if (to.type == Type::kNumber) {
      Alternative allowed = to;
      allowed.number.reset();
      if (!restrict(allowed, only_type)) return {to};
      if (allowed.number) {
        Alternative other = to;
        other.number = without(to.number, any_number(), *allowed.number, budget_);
        add(out, std::move(other));
      }
    } else {
      Alternative plain{.type = to.type};
      if (!restrict(plain, only_type)) return {to};
    }
  }
  if (const Json* constant = member(schema, "const")) {
    add_all(values(to, schema, keep(Json::array({*constant}), schema), true, depth));
  }
  if (const Json* list = member(schema, "enum")) add_all(values(to, schema, *list, true, depth));
  switch (to.type) {
    case Type::kNumber:
      violate_number(to, schema, out);
      break;
    case Type::kString:
      violate_string(to, schema, out);
      break;
    case Type::kArray:
      violate_array(to, schema, out);
      break;
    case Type::kObject:
      violate_object(to, schema, out);
      break;
    default:
      break;
  }
  const Alternatives self = {to};
  if (const Json* all = member(schema, "allOf")) add_all(any_of(self, *all, true, depth));
  if (const Json* any = member(schema, "anyOf")) add_all(all_of(self, *any, true, depth));
  if (const Json* one = member(schema, "oneOf")) {
    add_all(all_of(self, *one, true, depth));
    for (size_t i = 0; i < one->size(); ++i) {
      for (size_t j = i + 1; j < one->size(); ++j) {
        add_all(apply(apply(self, {&(*one)[i], false}, depth + 1), {&(*one)[j], false}, depth + 1));
      }
    }
  }
  if (const Json* inner = member(schema, "not")) add_all(apply_one(to, {inner, false}, depth + 1));
  const Json *if_ = member(schema, "if"), *then = member(schema, "then"), *otherwise = member(schema, "else");
  if (if_ != nullptr && then != nullptr) add_all(apply(apply(self, {if_, false}, depth + 1), {then, true}, depth + 1));
  if (if_ != nullptr && otherwise != nullptr) {
    add_all(apply(apply(self, {if_, true}, depth + 1), {otherwise, true}, depth + 1));
  }
  return out;
}

void Document::violate_number(const Alternative& to, const Json& schema, Alternatives& out) {
  for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    const Json* value = member(schema, keyword);
    if (value == nullptr || value->is_boolean()) continue;
    Json only = {{keyword, *value}};
    for (const char* flag : {"exclusiveMinimum", "exclusiveMaximum"}) {
      if (const Json* v = member(schema, flag); v != nullptr && v->is_boolean()) only[flag] = *v;
    }
    Alternative all{.type = Type::kNumber};
    restrict_number(all, keep(std::move(only), schema));
    Alternative next = to;
    next.number = without(to.number, any_number(), *all.number, budget_);
    add(out, std::move(next));
  }
}

void Document::violate_string(const Alternative& to, const Json& schema, Alternatives& out) {
  if (const int least = count(schema, "minLength", 0); least > 0) {
    Alternative next = to;
    next.most = next.most < 0 ? least - 1 : std::min(next.most, least - 1);
    add(out, std::move(next));
  }
  if (schema.contains("maxLength")) {
    Alternative next = to;
    next.least = std::max(next.least, count(schema, "maxLength", 0) + 1);
    add(out, std::move(next));
  }
  if (const Json* v = member(schema, "pattern"); v != nullptr && v->is_string()) {
    Alternative next = to;
    next.string = without(to.string, any_text(), pattern(v->get<std::string>(), path(schema) + ".pattern"), budget_);
    add(out, std::move(next));
  }
  const Json* named = member(schema, "format");
  const Automaton* texts =
      asserts_format_ && named != nullptr && named->is_string() ? format(named->get<std::string>()) : nullptr;
  if (texts != nullptr) {
    Alternative next = to;
    next.string = without(to.string, any_text(), *texts, budget_);
    add(out, std::move(next));
  }
}

void Document::violate_array(const Alternative& to, const Json& schema, Alternatives& out) {
  if (const int least = count(schema, "minItems", 0); least > 0) {
    Alternative next = to;
    next.most = next.most < 0 ? least - 1 : std::min(next.most, least - 1);
    add(out, std::move(next));
  }
  if (schema.contains("maxItems")) {
    Alternative next = to;
    next.least = std::max(next.least, count(schema, "maxItems", 0) + 1);
    add(out, std::move(next));
  }
  if (const Json* unique = member(schema, "uniqueItems");
      unique != nullptr && unique->is_boolean() && unique->get<bool>()) {
    refuse(schema, "uniqueItems", "within 'not' is not supported");
  }
  Alternative rules{.type = Type::kArray};
  restrict_array(rules, schema);
  for (const ItemRules& own : rules.items) {
    for (size_t i = 0; i < own.prefix.size(); ++i) {
      Alternative next = to;
      next.least = std::max(next.least, static_cast<int>(i) + 1);
      ItemRules wrong;
      wrong.prefix.resize(i);
      wrong.prefix.push_back({{own.prefix[i][0].schema, true}});
      next.items.push_back(std::move(wrong));
      add(out, std::move(next));
    }
    if (own.rest.empty()) continue;
    const Json& rest = *own.rest[0].schema;
    if (rest.is_boolean() && rest.get<bool>()) continue;
    Alternative next = to;
    if (rest.is_boolean()) {
      next.least = std::max(next.least, static_cast<int>(own.prefix.size()) + 1);
    } else if (own.prefix.empty()) {
      next.contains.push_back({.item = {{&rest, true}}, .least = 1, .most = -1});
    } else {
      refuse(schema, "items", "after a prefix and within 'not' is not supported");
    }
    add(out, std::move(next));
  }
  for (const Contains& own : rules.contains) {
    if (own.least > 0) {
      Alternative next = to;
      next.contains.push_back({.item = own.item, .least = 0, .most = own.least - 1});
      add(out, std::move(next));
    }
    if (own.most >= 0) {
      Alternative next = to;
      next.contains.push_back({.item = own.item, .least = own.most + 1, .most = -1});
      add(out, std::move(next));
    }
  }
}

void Document::violate_object(const Alternative& to, const Json& schema, Alternatives& out) {
  const auto with_rule = [&](const std::string& name, Goal goal) {
    Alternative next = to;
    next.members.push_back({.properties = {{name, std::move(goal)}}, .patterns = {}, .additional = {}});
    return next;
  };
  const auto absent = [&](const std::string& name) {
    Alternative next = with_rule(name, {{&kFalse, false}});
    if (next.required.contains(name)) next.least = next.most = 0, next.least = 1;  // none
    return next;
  };
  if (const int least = count(schema, "minProperties", 0); least > 0) {
    Alternative next = to;
    next.most = next.most < 0 ? least - 1 : std::min(next.most, least - 1);
    add(out, std::move(next));
  }
  if (schema.contains("maxProperties")) {
    Alternative next = to;
    next.least = std::max(next.least, count(schema, "maxProperties", 0) + 1);
    add(out, std::move(next));
  }
  Alternative rules{.type = Type::kObject};
  restrict_object(rules, schema);
  for (const std::string& name : rules.required) add(out, absent(name));
  for (const auto& [name, others] : rules.implied) {
    for (const std::string& other : others) {
      Alternative next = absent(other);
      next.required.insert(name);
      add(out, std::move(next));
    }
  }
  for (const MemberRules& own : rules.members) {
    for (const auto& [name, goal] : own.properties) {
      const Json& value = *goal[0].schema;
      if (value.is_boolean() && value.get<bool>()) continue;
      Alternative next = with_rule(name, {{&value, true}});
      next.required.insert(name);
      add(out, std::move(next));
    }
    const auto add_some = [&](const Automaton& names, const Json& value) {
      if (names.empty() || (value.is_boolean() && value.get<bool>())) return;
      Alternative next = to;
      next.some.push_back({.names = names, .value = value.is_boolean() ? Goal{} : Goal{{&value, true}}});
      next.least = std::max(next.least, 1);
      add(out, std::move(next));
    };
    for (const auto& [text, goal] : own.patterns) add_some(pattern(text, ""), *goal[0].schema);
    if (own.additional.empty()) continue;
    std::vector<Automaton> known;
    for (const auto& [name, goal] : own.properties) known.push_back(Automaton::literal(name));
    for (const auto& [text, goal] : own.patterns) known.push_back(pattern(text, ""));
    add_some(subtract(any_text(), unite(known, budget_), budget_), *own.additional[0].schema);
  }
  if (rules.names) {
    Alternative next = to;
    next.some.push_back({.names = subtract(any_text(), *rules.names, budget_), .value = {}});
    next.least = std::max(next.least, 1);
    if (!next.some.back().names.empty()) add(out, std::move(next));
  }
  for (const char* keyword : {"dependentSchemas", "dependencies"}) {
    const Json* v = member(schema, keyword);
    if (v == nullptr) continue;
    for (const auto& [name, inner] : v->items()) {
      if (inner.is_array() || inner.is_string()) continue;
      Alternative next = to;
      next.required.insert(name);
      for (Alternative& one : apply_one(next, {&inner, true}, 1)) add(out, std::move(one));
    }
  }
}

}  // namespace sluice::grammar::json_schema
