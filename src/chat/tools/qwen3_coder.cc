// Qwen3-Coder, Nemotron 3 and Step 3.5: <tool_call><function=f><parameter=k>v</parameter></function></tool_call>, with
// line breaks around names and values. MiMo writes none around values: there, line breaks are a part of them.
#include "chat/tools/call_format.h"

namespace sluice::tools::qwen3_coder {
namespace {

CallFormat functions(const std::string& space) {
  return {.call_begin = {"<tool_call>\n"},
          .call_end = {"\n</tool_call>"},
          .unmarked = {"<function="},
          .separator = "\n",
          .body = tagged_body({.name_begin = "<function=",
                               .name_end = ">\n",
                               .parameter_begin = "<parameter=",
                               .parameter_end = ">",
                               .value_begin = space,
                               .value_end = space + "</parameter>\n",
                               .body_end = "</function>",
                               .strip_newlines = !space.empty(),
                               .behind_body = "</tool_call>"})};
}

const CallFormat lines = functions("\n"), compact = functions("");

bool has_lines(std::string_view source) { return has_texts(source, {"<tool_call>", "<function="}); }
// Templates do not tell it from the other: it is chosen by its name only.
bool no_template(std::string_view) { return false; }

const ToolSyntax qwen3_coder = call_syntax<lines>("qwen3_coder", has_lines, {"qwen3_xml", "step3p5", "step5"});
const ToolSyntax mimo = call_syntax<compact>("mimo", no_template);
const Registry<ToolSyntax> register_qwen3_coder{qwen3_coder}, register_mimo{mimo};

}  // namespace
}  // namespace sluice::tools::qwen3_coder
