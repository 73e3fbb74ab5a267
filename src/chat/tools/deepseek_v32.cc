// DeepSeek V3.2 and V4 (DSML): <｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="k"
// string="true|false">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>; V4 writes tool_calls.
#include "chat/tools/call_format.h"

namespace sluice {
namespace {

CallFormat dsml(const std::string& section) {
  return {.section_begin = {"<｜DSML｜" + section + ">\n"},
          .section_end = {"\n</｜DSML｜" + section + ">"},
          .separator = "\n",
          .body = tagged_body({.name_begin = "<｜DSML｜invoke name=\"",
                               .name_end = "\">\n",
                               .parameter_begin = "<｜DSML｜parameter name=\"",
                               .parameter_end = "\"",
                               .value_begin = " string=\"false\">",
                               .string_begin = " string=\"true\">",
                               .value_end = "</｜DSML｜parameter>\n",
                               .body_end = "</｜DSML｜invoke>",
                               .strip_newlines = false})};
}

const CallFormat function_calls = dsml("function_calls"), tool_calls = dsml("tool_calls");

bool is_v32(std::string_view source) { return has_texts(source, {"DSML", "function_calls>"}); }
bool is_v4(std::string_view source) { return has_texts(source, {"DSML", "tool_calls>"}, {"function_calls>"}); }

const ToolSyntax v32 = call_syntax<function_calls>("deepseek_v32", is_v32);
const ToolSyntax v4 = call_syntax<tool_calls>("deepseek_v4", is_v4);
const Registry<ToolSyntax> register_v32{v32}, register_v4{v4};

}  // namespace
}  // namespace sluice
