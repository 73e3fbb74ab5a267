// How models write calls of tools. One description of a syntax gives the parser of an answer and the grammar of its
// calls, so that these agree.
#pragma once

#include <memory>
#include <string_view>

#include "base/json.h"
#include "base/registry.h"
#include "chat/output_parser.h"
#include "grammar/source.h"

namespace sluice {

struct ToolSyntax {
  std::string_view name;  // vLLM's name of the parser: "hermes"
  // Whether a chat template (its source) writes calls in this syntax.
  bool (*in_template)(std::string_view source);
  std::unique_ptr<OutputParser> (*parser)();
  // Name of the kind of grammar (grammar/source.h) whose texts are answers in this syntax. Its text is a JSON object:
  // "functions": an array of {"name", "parameters"}; "required": at least one call, and nothing else; "parallel":
  // several calls are allowed.
  std::string_view grammar_kind;
};

// The syntax of a template; null if it is not known.
const ToolSyntax* find_tool_syntax(std::string_view template_source);

}  // namespace sluice
