// MiniMax-M1: <tool_calls>\n{"name": "f", "arguments": {...}}\n</tool_calls>, a line for each call.
#include "chat/tools/call_format.h"

namespace sluice::tools::minimax {
namespace {

const CallFormat format{
    .section_begin = {"<tool_calls>\n"}, .section_end = {"\n</tool_calls>"}, .separator = "\n", .body = json_body()};

bool in_template(std::string_view source) {
  return has_texts(source, {"<tool_calls>", "<beginning_of_sentence>"});  // others have a list within the same tags
}

const ToolSyntax syntax = call_syntax<format>("minimax", in_template, {"minimax_m1"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::minimax
