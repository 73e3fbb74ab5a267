// InternLM 2.5 and 3: <|action_start|><|plugin|>\n{"name": "f", "parameters": {...}}<|action_end|>.
#include "chat/tools/call_format.h"

namespace sluice::tools::internlm {
namespace {

const CallFormat format{.call_begin = {"<|action_start|><|plugin|>\n", "<|action_start|> <|plugin|>"},
                        .call_end = {"<|action_end|>"},
                        .separator = "\n",
                        .body = json_body({.arguments = "parameters"})};

bool in_template(std::string_view source) { return has_texts(source, {"<|action_start|>", "<|plugin|>"}); }

const ToolSyntax syntax = call_syntax<format>("internlm", in_template, {"interns1"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::internlm
