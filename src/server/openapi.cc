// Makes the OpenAPI document; see openapi.h.
#include "server/openapi.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/ascii.h"
#include "server/endpoint.h"
#include "sluice/version.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

// Empty: several types.
std::string json_type(const Parameter& row) {
  switch (row.type) {
    case Type::kTokenBias:
      return "object";
    case Type::kTokenIds:
      return "array";
    case Type::kStrings:
    case Type::kUnsupported:
    case Type::kAny:
      return {};
    default:
      return type_text(row);
  }
}

void add_limits(const Parameter& row, Json& schema) {
  if (row.min != row.max) {
    const auto number = [&](double value) {
      return row.type == Type::kInteger ? Json(static_cast<int64_t>(value)) : Json(value);
    };
    schema[row.above_min ? "exclusiveMinimum" : "minimum"] = number(row.min);
    schema["maximum"] = number(row.max);
  }
  const bool list = row.type == Type::kArray || row.type == Type::kTokenIds;
  const bool object = row.type == Type::kObject || row.type == Type::kTokenBias;
  if (!list && !object) return;
  if (row.min_items > 0) schema[list ? "minItems" : "minProperties"] = row.min_items;
  const bool counted = row.max_items > 0 && row.max_items != Parameter::kVocabulary;
  if (counted) schema[list ? "maxItems" : "maxProperties"] = row.max_items;
}

Json nullable(Json schema) { return {{"anyOf", Json::array({std::move(schema), {{"type", "null"}}})}}; }

// Null means the same as a field that is missing.
Json schema_of(const Parameter& row) {
  if (row.type == Type::kUnsupported) {
    const std::string accepted = accepted_text(row);
    return {{"description", fmt::format("Not supported.{}{}{}", accepted.empty() ? "" : " Accepted: " + accepted + ".",
                                        row.help.empty() ? "" : " ", row.help)},
            {"deprecated", true}};
  }
  Json schema = Json::object();
  if (row.type == Type::kStrings) {
    schema["anyOf"] = Json::array({{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}});
  } else if (const std::string type = json_type(row); !type.empty()) {
    schema["type"] = type;
  }
  if (row.type == Type::kTokenIds) schema["items"] = {{"type", "integer"}, {"minimum", 0}};
  if (row.type == Type::kTokenBias) schema["additionalProperties"] = {{"type", "number"}};
  add_limits(row, schema);
  if (!row.required && !schema.empty()) schema = nullable(std::move(schema));
  schema["description"] = fmt::format("{}. Default: {}.{}", row.help, row.fallback,
                                      row.max_bytes > 0 ? fmt::format(" At most {}.", size_text(row)) : "");
  return schema;
}

// The fields of all endpoints of a path. If there are several, each needs fields of its own.
Json body_schema(const PathEndpoints& endpoints) {
  Json properties = Json::object(), required = Json::array();
  const auto add = [&](const EndpointInfo& endpoint) {
    for (const std::span<const Parameter> group : endpoint.parameters) {
      for (const Parameter& row : group) {
        Json& schema = properties[std::string(row.name)];
        if (schema.is_null()) schema = schema_of(row);
        if (row.required && endpoints.others.empty()) required.push_back(row.name);
      }
    }
  };
  add(*endpoints.owner);
  for (const auto& [endpoint, shared] : endpoints.others) add(*endpoint);
  Json schema = {{"type", "object"}};
  if (const std::string_view field = endpoints.owner->array_field; !field.empty()) {
    schema["type"] = Json::array({"array", "object"});
    schema["description"] = fmt::format("An array stands for the field `{}`.", field);
  }
  schema["properties"] = std::move(properties);
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

// "/v1/models/*" is "/v1/models/{name}"; the rest of the path may contain slashes.
std::string path_of(const Route& route) {
  std::string path(route.path);
  if (path.ends_with("/*")) path.replace(path.size() - 1, 1, "{name}");
  return path;
}

Json error_response() {
  return {{"description", "An error, in the form of the route's dialect."},
          {"content", {{"application/json", {{"schema", {{"type", "object"}}}}}}}};
}

constexpr std::string_view kJsonType = "application/json";

std::string_view content_type_of(const Route& route) {
  if (route.path == "/metrics") return "text/plain";
  return route.path == "/events" ? "text/event-stream" : kJsonType;
}

Json operation_of(const Route& route) {
  const PathEndpoints endpoints = endpoints_at(route.method, route.path);
  std::string id = ascii_lower(route.method) + std::string(route.path);
  std::ranges::replace_if(
      id, [](char c) { return c == '/' || c == '.' || c == '-' || c == '*'; }, '_');
  const std::string tag = route.dialect != nullptr ? std::string(route.dialect->name) : "server";
  Json out = {{"operationId", id}, {"summary", route.help}, {"tags", Json::array({tag})}};
  if (route.path.ends_with("/*")) {
    out["parameters"] =
        Json::array({{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (endpoints.owner != nullptr && !endpoints.owner->parameters.empty()) {
    out["requestBody"] = {{"required", true},
                          {"content", {{"application/json", {{"schema", body_schema(endpoints)}}}}}};
  }
  const std::string_view type = content_type_of(route);
  const Json schema = type == kJsonType ? Json::object() : Json{{"type", "string"}};
  out["responses"] = {{"200",
                       {{"description", "The answer."},
                        {"content", Json::object({{std::string(type), Json::object({{"schema", schema}})}})}}},
                      {"default", error_response()}};
  if ((route.flags & Route::kPublic) != 0) out["security"] = Json::array();
  return out;
}

// Pages and their files are not API.
bool is_page(const Route& route) {
  return (route.path == "/" && route.method == "GET") || route.path == "/dashboard" || route.path == "/docs" ||
         route.path == "/docs.css" || route.path.starts_with("/ui/");
}

}  // namespace

Json openapi_document(const std::vector<Route>& routes) {
  Json paths = Json::object();
  for (const Route& route : routes) {
    if (!is_page(route)) paths[path_of(route)][ascii_lower(route.method)] = operation_of(route);
  }
  return {{"openapi", "3.1.0"},
          {"info",
           {{"title", "Sluice"},
            {"version", kVersion},
            {"description", "Routes of several APIs for one model server. A key is needed if the server has any."}}},
          {"paths", std::move(paths)},
          {"components",
           {{"securitySchemes",
             {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
              {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "X-Api-Key"}}}}}}},
          // A server without keys needs none.
          {"security", Json::array({Json::object(), {{"bearer", Json::array()}}, {{"header", Json::array()}}})}};
}

}  // namespace sluice::server
