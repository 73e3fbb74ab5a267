// Granite 3: <|tool_call|>[{"name": "f", "arguments": {...}}]. Granite 20B for functions: <function_call> and the same
// object, several after each other. Granite 4 writes calls as Hermes does.
#include "chat/tools/call_format.h"

namespace sluice::tools::granite {
namespace {

const CallFormat list{.section_begin = {"<|tool_call|>", "<tool_call>"},
                      .separator = ", ",
                      .list = true,
                      .text_after = false,
                      .body = json_body()};

const CallFormat single{
    .call_begin = {"<function_call> "}, .separator = "\n", .text_after = false, .body = json_body()};

bool in_list(std::string_view source) { return has_texts(source, {"<|tool_call|>"}, {"<|tool_call>", "functools["}); }
bool in_single(std::string_view source) { return has_texts(source, {"<function_call>"}); }

const ToolSyntax syntaxes[] = {call_syntax<list>("granite", in_list), call_syntax<single>("granite-20b-fc", in_single)};
const Registry<ToolSyntax> registered[] = {Registry<ToolSyntax>(syntaxes[0]), Registry<ToolSyntax>(syntaxes[1])};

}  // namespace
}  // namespace sluice::tools::granite
