// LongCat: <longcat_tool_call>\n{"name": "f", "arguments": {...}}\n</longcat_tool_call>.
#include "chat/tools/call_format.h"

namespace sluice::tools::longcat {
namespace {

const CallFormat format{.call_begin = {"<longcat_tool_call>\n"},
                        .call_end = {"\n</longcat_tool_call>"},
                        .separator = "\n",
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"<longcat_tool_call>"}); }

const ToolSyntax syntax = call_syntax<format>("longcat", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::longcat
