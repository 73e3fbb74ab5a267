// MiniMax-M2: <minimax:tool_call>\n<invoke name="f">\n<parameter name="k">v</parameter>\n</invoke>\n
// </minimax:tool_call>, several invocations within the same section.
#include "chat/tools/call_format.h"

namespace sluice::tools::minimax_m2 {
namespace {

const CallFormat format{.section_begin = {"<minimax:tool_call>\n"},
                        .section_end = {"\n</minimax:tool_call>"},
                        .separator = "\n",
                        .body = tagged_body({.name_begin = "<invoke name=\"",
                                             .name_end = "\">\n",
                                             .parameter_begin = "<parameter name=\"",
                                             .parameter_end = "\">",
                                             .value_end = "</parameter>\n",
                                             .body_end = "</invoke>",
                                             .strip_newlines = false})};

bool in_template(std::string_view source) { return has_texts(source, {"<minimax:tool_call>"}); }

const ToolSyntax syntax = call_syntax<format>("minimax_m2", in_template, {"minimax-m2"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::minimax_m2
