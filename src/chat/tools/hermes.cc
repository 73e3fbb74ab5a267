// Hermes and Qwen: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, several after each other.
#include "chat/tools/call_format.h"

namespace sluice {
namespace {

const CallFormat format{
    .call_begin = {"<tool_call>\n"}, .call_end = {"\n</tool_call>"}, .separator = "\n", .body = json_body()};

bool in_template(std::string_view source) {
  const auto has = [source](std::string_view text) { return source.find(text) != std::string_view::npos; };
  // Others use the same tags around calls that are not JSON.
  return has("<tool_call>") && has("arguments") && !has("<function=") && !has("<arg_key>");
}

const ToolSyntax syntax = call_syntax<format>("hermes", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice
