// xLAM: the answer is [{"name": "f", "arguments": {...}}]. Behind a text, the list is marked in one of several ways.
#include "chat/tools/call_format.h"

namespace sluice::tools::xlam {
namespace {

const CallFormat format{.section_begin = {"[TOOL_CALLS]", "<tool_call>", "```json"},
                        .section_end = {"", "</tool_call>", "```"},
                        .separator = ", ",
                        .list = true,
                        .bare = "[",
                        .text_after = false,
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"make calls in a single JSON array"}); }

const ToolSyntax syntax = call_syntax<format>("xlam", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::xlam
