// DeepSeek V3.2 and V4 (DSML): <｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="k"
// string="true|false">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>. V4 writes tool_calls; V4.1
// writes calls, and a space before each name of a tag.
#include "chat/tools/call_format.h"

namespace sluice {
namespace {

CallFormat dsml(const std::string& section, const std::string& space = "") {
  const std::string open = "<｜DSML｜" + space, close = "</｜DSML｜" + space;
  return {.section_begin = {open + section + ">\n"},
          .section_end = {"\n" + close + section + ">"},
          .unmarked = {open + "invoke name=\""},
          .separator = "\n",
          .body = tagged_body({.name_begin = open + "invoke name=\"",
                               .name_end = "\">\n",
                               .parameter_begin = open + "parameter name=\"",
                               .parameter_end = "\"",
                               .value_begin = " string=\"false\">",
                               .string_begin = " string=\"true\">",
                               .value_end = close + "parameter>\n",
                               .body_end = close + "invoke>",
                               .strip_newlines = false})};
}

const CallFormat function_calls = dsml("function_calls"), tool_calls = dsml("tool_calls"), calls = dsml("calls", " ");

bool is_v32(std::string_view source) { return has_texts(source, {"DSML", "function_calls>"}); }
bool is_v4(std::string_view source) { return has_texts(source, {"DSML", "tool_calls>"}, {"function_calls>"}); }
bool is_v41(std::string_view source) { return has_texts(source, {"DSML", " calls>"}, {"tool_calls>"}); }

const ToolSyntax v32 = call_syntax<function_calls>("deepseek_v32", is_v32);
const ToolSyntax v4 = call_syntax<tool_calls>("deepseek_v4", is_v4);
const ToolSyntax v41 = call_syntax<calls>("deepseek_v41", is_v41);
const Registry<ToolSyntax> register_v32{v32}, register_v4{v4}, register_v41{v41};

}  // namespace
}  // namespace sluice
