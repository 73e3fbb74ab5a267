// Jamba and Hunyuan A13B: <tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>.
#include "chat/tools/call_format.h"

namespace sluice::tools::jamba {
namespace {

const CallFormat format{.section_begin = {"<tool_calls>"},
                        .section_end = {"</tool_calls>"},
                        .separator = ", ",
                        .list = true,
                        .body = json_body()};

bool in_template(std::string_view source) {
  return has_texts(source, {"<tool_calls>", "arguments"}, {"<beginning_of_sentence>"});  // MiniMax-M1
}

const ToolSyntax syntax = call_syntax<format>("jamba", in_template, {"hunyuan_a13b", "hunyuan"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::jamba
