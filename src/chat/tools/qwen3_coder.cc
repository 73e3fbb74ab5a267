// Qwen3-Coder, Nemotron 3 and Step 3.5: <tool_call><function=f><parameter=k>v</parameter></function></tool_call>, with
// line breaks around names and values.
#include "chat/tools/call_format.h"

namespace sluice::tools::qwen3_coder {
namespace {

const CallFormat format{.call_begin = {"<tool_call>\n"},
                        .call_end = {"\n</tool_call>"},
                        .separator = "\n",
                        .body = tagged_body({.name_begin = "<function=",
                                             .name_end = ">\n",
                                             .parameter_begin = "<parameter=",
                                             .parameter_end = ">",
                                             .value_begin = "\n",
                                             .value_end = "\n</parameter>\n",
                                             .body_end = "</function>"})};

bool in_template(std::string_view source) { return has_texts(source, {"<tool_call>", "<function="}); }

const ToolSyntax syntax = call_syntax<format>("qwen3_coder", in_template, {"qwen3_xml", "step3p5"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::qwen3_coder
