#include "chat/tool_syntax.h"

#include <algorithm>

#include "grammar/json_schema/close.h"
#include "sluice/error.h"

namespace sluice {
namespace {

grammar::NodeId build_calls(grammar::Builder& builder, std::string_view text, const grammar::CompileContext& context) {
  const Json call = parse_json(text, {.depth = 256});
  CallGrammar calls{.required = call.at("required").get<bool>(), .parallel = call.at("parallel").get<bool>()};
  for (const Json& function : call.at("functions")) {
    calls.functions.push_back({.name = function.at("name").get<std::string>(),
                               .parameters = grammar::close_objects(function.at("parameters"))});
  }
  return tool_syntax(call.at("syntax").get<std::string>())->build(builder, calls, context);
}

const grammar::SourceKind kCalls{
    .name = "tool_calls", .help = "answers with calls of functions, in the syntax of a model", .build = build_calls};
const Registry<grammar::SourceKind> registered_calls{kCalls};

}  // namespace

ToolFunctions tool_functions(const Json& tools) {
  if (!tools.is_array()) throw Error(ErrorCode::kInvalidRequest, "'tools' must be an array", "tools", "invalid_type");
  ToolFunctions functions;
  for (const Json& tool : tools) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      throw Error(ErrorCode::kInvalidRequest, "each of 'tools' must have a 'function' with a 'name'", "tools",
                  "invalid_value");
    }
    const auto parameters = function.find("parameters");
    functions.push_back({.name = function["name"].get<std::string>(),
                         .parameters = parameters != function.end() && parameters->is_object() ? *parameters : Json()});
  }
  return functions;
}

const ToolSyntax* tool_syntax(std::string_view name) {
  for (const ToolSyntax* syntax : Registry<ToolSyntax>::all()) {
    if (syntax->name == name || std::ranges::find(syntax->aliases, name) != syntax->aliases.end()) return syntax;
  }
  return nullptr;
}

const ToolSyntax* find_tool_syntax(std::string_view template_source) {
  for (const ToolSyntax* syntax : Registry<ToolSyntax>::all()) {
    if (syntax->in_template(template_source)) return syntax;
  }
  return nullptr;
}

std::string tool_calls_grammar(std::string_view syntax, const CallGrammar& calls) {
  Json functions = Json::array();
  for (const ToolFunction& f : calls.functions) functions.push_back({{"name", f.name}, {"parameters", f.parameters}});
  return dump_json(
      Json{{"syntax", syntax}, {"functions", functions}, {"required", calls.required}, {"parallel", calls.parallel}});
}

}  // namespace sluice
