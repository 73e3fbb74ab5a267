// Nemotron: <TOOLCALL>[{"name": "f", "arguments": {...}}]</TOOLCALL>.
#include "chat/tools/call_format.h"

namespace sluice::tools::nemotron_json {
namespace {

const CallFormat format{.section_begin = {"<TOOLCALL>"},
                        .section_end = {"</TOOLCALL>"},
                        .separator = ", ",
                        .list = true,
                        .body = json_body()};

bool in_template(std::string_view source) { return has_texts(source, {"<TOOLCALL>"}); }

const ToolSyntax syntax = call_syntax<format>("nemotron_json", in_template, {"llama_nemotron_json", "nemotron"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::nemotron_json
