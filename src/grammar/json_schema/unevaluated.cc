// unevaluatedProperties and unevaluatedItems: what the keywords of a schema, and of those applied with it, leave over.
#include <algorithm>

#include "grammar/json_schema/schema.h"

namespace sluice::grammar::json_schema {
namespace {

constexpr size_t kMostTogether = 8;  // alternatives of one anyOf, any of which may match together

}  // namespace

bool Document::has_unevaluated(const Json& schema) const {
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"}) {
    if (!schema.contains(keyword)) continue;
    if (old_draft_) refuse(schema, keyword, "is not a keyword of this draft");
    return true;
  }
  return false;
}

// Applies the keywords to what `from`, the alternative before this schema, did not have yet.
Alternatives Document::unevaluated(Alternatives to, const Alternative& from, const Json& schema) {
  for (Alternative& one : to) {
    budget_.step(8);
    const auto properties = schema.find("unevaluatedProperties"), items = schema.find("unevaluatedItems");
    if (one.type == Type::kObject && properties != schema.end()) {
      MemberRules rules{.properties = {}, .patterns = {}, .additional = {{&*properties, false}}, .evaluates = true};
      bool all = false;
      for (size_t i = from.members.size(); i < one.members.size(); ++i) {
        const MemberRules& known = one.members[i];
        if (!known.evaluates) continue;
        all = all || !known.additional.empty();
        for (const auto& [name, goal] : known.properties) rules.properties[name] = {};
        for (const auto& [text, goal] : known.patterns) rules.patterns.emplace_back(text, Goal{});
      }
      if (!all) one.members.push_back(std::move(rules));
    }
    if (one.type == Type::kArray && items != schema.end()) {
      ItemRules rules{.prefix = {}, .rest = {{&*items, false}}, .evaluates = true};
      if (one.contains.size() > from.contains.size())
        refuse(schema, "unevaluatedItems", "with 'contains' is not supported");
      bool all = false;
      for (size_t i = from.items.size(); i < one.items.size(); ++i) {
        const ItemRules& known = one.items[i];
        if (!known.evaluates) continue;
        all = all || !known.rest.empty();
        rules.prefix.resize(std::max(rules.prefix.size(), known.prefix.size()));
      }
      if (!all) one.items.push_back(std::move(rules));
    }
    // For schemas around this one, nothing within "not" is evaluated.
    for (size_t i = from.members.size(); i < one.members.size(); ++i) {
      one.members[i].evaluates = one.members[i].evaluates && evaluates();
    }
    for (size_t i = from.items.size(); i < one.items.size(); ++i) {
      one.items[i].evaluates = one.items[i].evaluates && evaluates();
    }
  }
  return to;
}

// Alternatives of anyOf that match together evaluate together: one alternative for each set of them. Others of the list
// may match, too, which only evaluates more.
Alternatives Document::any_together(const Alternatives& to, const Json& schema, const Json& list, int depth) {
  if (list.size() > kMostTogether)
    refuse(schema, "anyOf", "with more than 8 schemas and 'unevaluated...' is not supported");
  Alternatives none = to, some;
  for (const Json& option : list) {
    Alternatives with = apply(none, {&option, false}, depth + 1);
    for (Alternative& one : apply(some, {&option, false}, depth + 1)) add(with, std::move(one));
    for (Alternative& one : with) add(some, std::move(one));
  }
  return some;
}

// What a reference means whose target depends on the schemas that lead to it: supported where there is one target.
const Json* Document::dynamic_target(const Json& schema) const {
  const bool recursive = schema.contains("$recursiveRef");
  const char* keyword = recursive ? "$recursiveRef" : "$dynamicRef";
  if (old_draft_) refuse(schema, keyword, "is not a keyword of this draft");
  const Json& reference = schema[keyword];
  if (!reference.is_string()) refuse(schema, keyword, "expected a string");
  const auto& text = reference.get_ref<const std::string&>();
  const Json* target = resolve(schema, text);
  if (target == nullptr) refuse(schema, keyword, "is not in the schema");
  const char* anchor = recursive ? "$recursiveAnchor" : "$dynamicAnchor";
  if (!target->is_object() || !target->contains(anchor) || text.find("#/") != std::string::npos) return target;
  const auto same = [&](const auto& place) {
    return place.first != target && place.first->is_object() && place.first->contains(anchor) &&
           (*place.first)[anchor] == (*target)[anchor];
  };
  if ((*target)[anchor] != Json(false) && std::any_of(places_.begin(), places_.end(), same)) {
    refuse(schema, keyword, "to an anchor that several schemas have is not supported");
  }
  return target;
}

}  // namespace sluice::grammar::json_schema
