// OpenAI's fields before tools: functions and function_call. They become tools.
#pragma once

#include <span>

#include "server/endpoint.h"

namespace sluice::server {

struct LegacyFunctions {
  Json functions;      // array or null
  Json function_call;  // "none", "auto", {"name": ...}, or null

  bool used() const { return functions.is_array() && !functions.empty(); }
};

std::span<const Parameter> legacy_function_parameters();  // LegacyFunctions

// `functions` as `tools`; `function_call` as `tool_choice`, null if it is absent. Throw ApiError.
Json legacy_tools(const LegacyFunctions& legacy);
Json legacy_tool_choice(const LegacyFunctions& legacy);

}  // namespace sluice::server
