// GLM 4.5 to 4.7 and Laguna: <tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>, since 4.7
// without the line breaks.
#include "chat/tools/call_format.h"

namespace sluice::tools::glm45 {
namespace {

CallFormat glm(const std::string& space) {
  return {.call_begin = {"<tool_call>"},
          .call_end = {"</tool_call>"},
          .separator = "\n",
          .body = tagged_body({.name_end = space,
                               .parameter_begin = "<arg_key>",
                               .parameter_end = "</arg_key>",
                               .value_begin = space + "<arg_value>",
                               .value_end = "</arg_value>" + space,
                               .strip_newlines = false})};
}

const CallFormat lines = glm("\n"), no_lines = glm("");

bool has_lines(std::string_view source) {
  return has_texts(source, {"<arg_key>"}, {"</arg_key><arg_value>", "<tool_sep>"});
}
bool has_no_lines(std::string_view source) { return has_texts(source, {"</arg_key><arg_value>"}, {"<tool_sep>"}); }

const ToolSyntax glm45 = call_syntax<lines>("glm45", has_lines, {"poolside_v1"});
const ToolSyntax glm47 = call_syntax<no_lines>("glm47", has_no_lines, {"ling3"});
const Registry<ToolSyntax> register_glm45{glm45}, register_glm47{glm47};

}  // namespace
}  // namespace sluice::tools::glm45
