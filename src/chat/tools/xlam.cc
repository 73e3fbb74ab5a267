// xLAM: the answer is [{"name": "f", "arguments": {...}}].
#include "chat/tools/call_format.h"

namespace sluice {
namespace {

const CallFormat format{.section_begin = {"[TOOL_CALLS]", "<tool_call>"},
                        .separator = ", ",
                        .list = true,
                        .bare = "[",
                        .ignored = {"</tool_call>"},
                        .text_after = false,
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"make calls in a single JSON array"}); }

const ToolSyntax syntax = call_syntax<format>("xlam", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice
