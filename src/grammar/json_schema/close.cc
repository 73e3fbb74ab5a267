#include "grammar/json_schema/close.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace sluice::grammar {
namespace {

// With these, whether a text matches depends on what other schemas match.
constexpr std::array<std::string_view, 12> kComposing = {
    "oneOf",       "not",           "if",           "contains",         "unevaluatedProperties", "unevaluatedItems",
    "$dynamicRef", "$recursiveRef", "dependencies", "dependentSchemas", "patternProperties",     "propertyNames"};

bool composes(const Json& schema) {
  const auto has = [&](std::string_view key) { return schema.contains(key); };
  if (std::ranges::any_of(kComposing, has)) return true;
  if (has("allOf") && (!schema["allOf"].is_array() || schema["allOf"].size() != 1 || has("properties"))) return true;
  return has("properties") && (has("$ref") || has("anyOf"));
}

bool declares_required(const Json& schema) {
  const auto required = schema.find("required");
  if (required == schema.end() || !required->is_array()) return true;
  const Json& properties = schema["properties"];
  return std::ranges::all_of(
      *required, [&](const Json& name) { return name.is_string() && properties.contains(name.get<std::string>()); });
}

// The schemas within `schema`.
std::vector<Json*> parts(Json& schema) {
  std::vector<Json*> found;
  const auto each = [&](const char* key) {
    const auto it = schema.find(key);
    if (it == schema.end() || !it->is_structured()) return;
    for (Json& part : *it) found.push_back(&part);
  };
  for (const char* key : {"properties", "$defs", "definitions", "anyOf", "allOf", "prefixItems"}) each(key);
  for (const char* key : {"items", "additionalProperties", "additionalItems"}) {
    const auto it = schema.find(key);
    if (it == schema.end()) continue;
    if (it->is_array()) each(key);
    if (it->is_object()) found.push_back(&*it);
  }
  return found;
}

}  // namespace

Json close_objects(const Json& schema) {
  Json closed = schema;
  std::vector<Json*> todo = {&closed};
  while (!todo.empty()) {
    Json& part = *todo.back();
    todo.pop_back();
    if (!part.is_object()) continue;
    if (composes(part)) return schema;
    const auto properties = part.find("properties");
    if (properties != part.end() && properties->is_object() && !part.contains("additionalProperties") &&
        declares_required(part)) {
      part["additionalProperties"] = false;
    }
    std::ranges::copy(parts(part), std::back_inserter(todo));
  }
  return closed;
}

}  // namespace sluice::grammar
