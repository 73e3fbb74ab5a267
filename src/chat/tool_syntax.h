// How models write calls of tools. One description of a syntax gives the parser of an answer and the grammar of its
// calls, so that these agree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/registry.h"
#include "chat/output_parser.h"
#include "grammar/source.h"

namespace sluice {

// A function that the model may call.
struct ToolFunction {
  std::string name{};
  Json parameters{};  // JSON schema of the arguments, an object; null: any object
};
using ToolFunctions = std::vector<ToolFunction>;

// The functions of OpenAI's `tools`. Throws Error(kInvalidRequest) if `tools` has another form.
ToolFunctions tool_functions(const Json& tools);

// The answers that a request allows.
struct CallGrammar {
  ToolFunctions functions{};
  bool required = false;  // at least one call, and nothing else
  bool parallel = true;   // several calls are allowed
};

struct ToolSyntax {
  std::string_view name;                    // vLLM's name of the parser: "hermes"
  std::vector<std::string_view> aliases{};  // other names of the same
  // Whether a chat template (its source) writes calls in this syntax. At most one syntax may say so of a template.
  bool (*in_template)(std::string_view source);
  // Makes the parser of one choice. `functions` are those of the request: syntaxes whose arguments carry no types take
  // the types from their schemas.
  std::unique_ptr<OutputParser> (*parser)(std::shared_ptr<const ToolFunctions> functions);
  // The answers that `calls` allows, in this syntax. Throws GrammarError.
  grammar::NodeId (*build)(grammar::Builder& builder, const CallGrammar& calls, const grammar::CompileContext& context);
};

// The syntax of that name or alias; null if there is none.
const ToolSyntax* tool_syntax(std::string_view name);
// The syntax of a template; null if it is not known.
const ToolSyntax* find_tool_syntax(std::string_view template_source);

// The text of the grammar kind "tool_calls" (grammar/source.h) for answers in a syntax.
std::string tool_calls_grammar(std::string_view syntax, const CallGrammar& calls);

}  // namespace sluice
