// ERNIE 4.5: calls as those of Hermes; an answer may be in <response> tags.
#include "chat/tools/call_format.h"

namespace sluice::tools::ernie45 {
namespace {

const CallFormat format{.call_begin = {"<tool_call>\n"},
                        .call_end = {"\n</tool_call>"},
                        .separator = "\n",
                        .ignored = {"<response>", "</response>"},
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"<tool_call>", "<response>"}); }

const ToolSyntax syntax = call_syntax<format>("ernie45", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::ernie45
