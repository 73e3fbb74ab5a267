// Llama 3.1 to 4: the answer is {"name": "f", "parameters": {...}}. <|python_tag|> may come before it, and ";" between
// several calls.
#include "chat/tools/call_format.h"

namespace sluice::tools::llama3_json {
namespace {

const CallFormat format{.section_begin = {"<|python_tag|>"},
                        .separator = "; ",
                        .bare = "{",
                        .text_after = false,
                        .body = json_body({.arguments = "parameters"})};

bool in_template(std::string_view source) {
  return has_texts(source, {"\"parameters\": ", "ipython"}, {"<function=", "<tool_call>"});
}

const ToolSyntax syntax = call_syntax<format>("llama3_json", in_template, {"llama3", "llama4_json"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::llama3_json
