// Rows of the fields about tools that dialects with OpenAI's form of tools share.
#pragma once

#include "server/engine_request.h"
#include "server/rows.h"

namespace sluice::server {

constexpr Parameter tools_row(decltype(Parameter::set) set = assign<&ConversationFields::tools>) {
  return {.name = "tools",
          .type = Parameter::Type::kArray,
          .max_items = 128,
          .max_bytes = 1 << 20,
          .fallback = "none",
          .help = "functions that the template tells the model about",
          .set = set};
}

// `set` differs, because dialects name the function of an object in different places.
constexpr Parameter tool_choice_row(decltype(Parameter::set) set) {
  return {.name = "tool_choice",
          .type = Parameter::Type::kAny,
          .max_bytes = kLabelBytes,
          .fallback = "auto",
          .help =
              "none: the template is not told of the tools; auto; required: at least one call; an object names the "
              "function that is called",
          .set = set};
}

constexpr Parameter parallel_tool_calls_row() {
  return {.name = "parallel_tool_calls",
          .type = Parameter::Type::kBoolean,
          .fallback = "true",
          .help = "an answer may have several calls",
          .set = assign<&ConversationFields::parallel_tool_calls>};
}

}  // namespace sluice::server
