// Invocations within a section: <minimax:tool_call>\n<invoke name="f">\n<parameter name="k">v</parameter>\n</invoke>\n
// </minimax:tool_call> by MiniMax-M2; dots writes dots_function_call.
#include "chat/tools/call_format.h"

namespace sluice::tools::minimax_m2 {
namespace {

CallFormat invocations(const std::string& section) {
  return {.section_begin = {"<" + section + ">\n"},
          .section_end = {"\n</" + section + ">"},
          .separator = "\n",
          .body = tagged_body({.name_begin = "<invoke name=\"",
                               .name_end = "\">\n",
                               .parameter_begin = "<parameter name=\"",
                               .parameter_end = "\">",
                               .value_end = "</parameter>\n",
                               .body_end = "</invoke>",
                               .strip_newlines = false})};
}

const CallFormat minimax = invocations("minimax:tool_call"), dots = invocations("dots_function_call");

bool is_minimax(std::string_view source) { return has_texts(source, {"<minimax:tool_call>"}); }
bool is_dots(std::string_view source) { return has_texts(source, {"<dots_function_call>"}); }

const ToolSyntax minimax_m2 = call_syntax<minimax>("minimax_m2", is_minimax, {"minimax-m2"});
const ToolSyntax dots_syntax = call_syntax<dots>("dots", is_dots);
const Registry<ToolSyntax> register_minimax{minimax_m2}, register_dots{dots_syntax};

}  // namespace
}  // namespace sluice::tools::minimax_m2
