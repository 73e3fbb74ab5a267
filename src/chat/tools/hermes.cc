// Hermes and Qwen: <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, several after each other.
#include "chat/tools/call_format.h"

namespace sluice::tools::hermes {
namespace {

const CallFormat format{
    .call_begin = {"<tool_call>\n"}, .call_end = {"\n</tool_call>"}, .separator = "\n", .body = json_body()};

// Others use the same tags around calls that are not JSON, or lists.
bool in_template(std::string_view source) {
  return has_texts(source, {"<tool_call>", "arguments"},
                   {"<function=", "<arg_key>", "<response>", "<|tool_call|>", "<longcat_tool_call>"});
}

const ToolSyntax syntax = call_syntax<format>("hermes", in_template, {"qwen", "qwen25", "qwen3_json", "granite4"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::hermes
