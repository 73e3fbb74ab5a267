// Mistral: [TOOL_CALLS]f[ARGS]{...} for each call since tokenizer v11, maybe with [CALL_ID] behind the name; and
// [TOOL_CALLS][{"name": "f", "arguments": {...}}] before. One parser reads both.
#include "chat/tools/call_format.h"

namespace sluice::tools::mistral {
namespace {

const std::shared_ptr<const CallBody> named = named_body({.between = "[ARGS]", .id = "[CALL_ID]"});

CallFormat list_of(std::shared_ptr<const CallBody> body) {
  return {
      .section_begin = {"[TOOL_CALLS]"}, .separator = ", ", .list = true, .text_after = false, .body = std::move(body)};
}

const CallFormat list = list_of(json_body()), either = list_of(or_json_body(named));
const CallFormat calls{.call_begin = {"[TOOL_CALLS]"}, .text_after = false, .body = named};

bool in_list(std::string_view source) { return has_texts(source, {"[TOOL_CALLS]"}, {"[ARGS]"}); }
bool in_calls(std::string_view source) { return has_texts(source, {"[TOOL_CALLS]", "[ARGS]"}); }

ToolSyntax reads_both(ToolSyntax syntax) {
  syntax.parser = call_syntax<either>(syntax.name, syntax.in_template).parser;
  return syntax;
}

const ToolSyntax syntaxes[] = {reads_both(call_syntax<calls>("mistral", in_calls)),
                               reads_both(call_syntax<list>("mistral_v3", in_list, {"mistral_v7"}))};
const Registry<ToolSyntax> registered[] = {Registry<ToolSyntax>(syntaxes[0]), Registry<ToolSyntax>(syntaxes[1])};

}  // namespace
}  // namespace sluice::tools::mistral
