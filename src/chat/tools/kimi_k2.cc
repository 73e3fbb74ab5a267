// Kimi K2: <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}
// <|tool_call_end|><|tool_calls_section_end|>. What comes before the arguments is also the id of the call.
#include "chat/tools/call_format.h"

namespace sluice::tools::kimi_k2 {
namespace {

const CallFormat format{.section_begin = {"<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"},
                        .section_end = {"<|tool_calls_section_end|>", "<|tool_call_section_end|>"},
                        .call_begin = {"<|tool_call_begin|>"},
                        .call_end = {"<|tool_call_end|>"},
                        .unmarked = {"<|tool_call_begin|>"},
                        .body = named_body({.between = "<|tool_call_argument_begin|>", .namespaced = true})};

bool in_template(std::string_view source) { return has_texts(source, {"<|tool_calls_section_begin|>"}); }

const ToolSyntax syntax = call_syntax<format>("kimi_k2", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::kimi_k2
