// GigaChat 3: a text, and then <|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {...}}.
#include "chat/tools/call_format.h"

namespace sluice::tools::gigachat3 {
namespace {

const CallFormat format{.call_begin = {"<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n",
                                       "<|function_call|>"},
                        .ignored = {"<|message_sep|>"},
                        .text_after = false,
                        .body = json_body()};

bool in_template(std::string_view source) {
  return has_texts(source, {"function call", "<|role_sep|>", "<|message_sep|>"});
}

const ToolSyntax syntax = call_syntax<format>("gigachat3", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::gigachat3
