// Phi 4 mini: functools[{"name": "f", "arguments": {...}}].
#include "chat/tools/call_format.h"

namespace sluice::tools::phi4_mini_json {
namespace {

const CallFormat format{.section_begin = {"functools[", "<|tool_call|>["},
                        .section_end = {"]", "]<|/tool_call|>"},
                        .separator = ", ",
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"functools["}); }

const ToolSyntax syntax = call_syntax<format>("phi4_mini_json", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::phi4_mini_json
