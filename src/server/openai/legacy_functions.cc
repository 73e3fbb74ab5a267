// Translates the older form of calls into tools.
#include "server/openai/legacy_functions.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "server/messages.h"
#include "server/openai/shared_fields.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

void set_function_call(Fields& f, const Json& v) {
  const FieldPath path = "function_call";
  if (v.is_object()) {
    const auto name = v.find("name");
    if (name == v.end()) throw missing_parameter("function_call.name");
    expect_string(*name, path / "name");
  } else {
    constexpr std::string_view kChoices[] = {"none", "auto"};
    expect_one_of(expect_string(v, path), "function_call", kChoices);
  }
  f.of<LegacyFunctions>().function_call = v;
}

constexpr auto kLegacy = std::to_array<Parameter>({
    {.name = "functions",
     .type = Type::kArray,
     .max_items = 128,
     .max_bytes = 1 << 20,
     .fallback = "none",
     .help = "the older form of tools; an answer has one call at most",
     .set = assign<&LegacyFunctions::functions>},
    {.name = "function_call",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "auto",
     .help = "none, auto, or an object with the name of the function that is called; needs functions",
     .set = set_function_call},
});

}  // namespace

std::span<const Parameter> legacy_function_parameters() { return kLegacy; }

Json legacy_tools(const LegacyFunctions& legacy) {
  const FieldPath path = "functions";
  Json tools = Json::array();
  for (size_t i = 0; i < legacy.functions.size(); ++i) {
    UnknownFields unknown;  // they are reported when the tools are checked
    tools.push_back({{"type", "function"}, {"function", check_function(legacy.functions[i], path[i], unknown)}});
  }
  return tools;
}

Json legacy_tool_choice(const LegacyFunctions& legacy) {
  if (!legacy.function_call.is_object()) return legacy.function_call;
  return {{"type", "function"}, {"function", {{"name", legacy.function_call["name"]}}}};
}

}  // namespace sluice::server
