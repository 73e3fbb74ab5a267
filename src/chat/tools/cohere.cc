// Command R7B and A: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]<|END_ACTION|>. A
// text is in <|START_RESPONSE|> or <|START_TEXT|>. The ids count from 0 in each answer.
#include "chat/tools/call_format.h"

namespace sluice::tools::cohere {
namespace {

const CallFormat format{.section_begin = {"<|START_ACTION|>"},
                        .section_end = {"<|END_ACTION|>"},
                        .separator = ",\n    ",
                        .list = true,
                        .list_begin = "[\n    ",
                        .list_end = "\n]",
                        .ignored = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"},
                        .text_after = false,
                        .body = json_body({.name = "tool_name", .arguments = "parameters", .id = "tool_call_id"})};

bool in_template(std::string_view source) { return has_texts(source, {"<|START_ACTION|>"}); }

const ToolSyntax syntax =
    call_syntax<format>("cohere_command3", in_template, {"cohere_command4", "command_r7b", "cohere"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::cohere
