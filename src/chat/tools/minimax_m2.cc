// Invocations within a section: <minimax:tool_call>\n<invoke name="f">\n<parameter name="k">v</parameter>\n</invoke>\n
// </minimax:tool_call> by MiniMax-M2; dots writes dots_function_call, and sometimes calls in JSON.
#include "chat/tools/call_format.h"

namespace sluice::tools::minimax_m2 {
namespace {

std::shared_ptr<const CallBody> invocation() {
  return tagged_body({.name_begin = "<invoke name=\"",
                      .name_end = "\">\n",
                      .parameter_begin = "<parameter name=\"",
                      .parameter_end = "\">",
                      .value_end = "</parameter>\n",
                      .body_end = "</invoke>",
                      .strip_newlines = false});
}

CallFormat section(const std::string& name, std::shared_ptr<const CallBody> body) {
  return {.section_begin = {"<" + name + ">\n"},
          .section_end = {"\n</" + name + ">"},
          .separator = "\n",
          .body = std::move(body)};
}

const CallFormat minimax = section("minimax:tool_call", invocation());
const CallFormat dots = section("dots_function_call", or_json_body(invocation()));

bool is_minimax(std::string_view source) { return has_texts(source, {"<minimax:tool_call>"}); }
bool is_dots(std::string_view source) { return has_texts(source, {"<dots_function_call>"}); }

const ToolSyntax minimax_m2 = call_syntax<minimax>("minimax_m2", is_minimax, {"minimax-m2"});
const ToolSyntax dots_syntax = call_syntax<dots>("dots", is_dots);
const Registry<ToolSyntax> register_minimax{minimax_m2}, register_dots{dots_syntax};

}  // namespace
}  // namespace sluice::tools::minimax_m2
