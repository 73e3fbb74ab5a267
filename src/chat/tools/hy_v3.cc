// Hunyuan 3: <tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>\n
// </tool_calls>.
#include "chat/tools/call_format.h"

namespace sluice::tools::hy_v3 {
namespace {

const CallFormat format{.section_begin = {"<tool_calls>\n"},
                        .section_end = {"\n</tool_calls>"},
                        .call_begin = {"<tool_call>"},
                        .call_end = {"</tool_call>"},
                        .separator = "\n",
                        .body = tagged_body({.name_end = "<tool_sep>\n",
                                             .parameter_begin = "<arg_key>",
                                             .parameter_end = "</arg_key>",
                                             .value_begin = "\n<arg_value>",
                                             .value_end = "</arg_value>\n",
                                             .strip_newlines = false})};

bool in_template(std::string_view source) { return has_texts(source, {"<tool_sep>", "<arg_key>"}); }

const ToolSyntax syntax = call_syntax<format>("hy_v3", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::hy_v3
