// Apertus: <|tools_prefix|>[{"f": {...}}]<|tools_suffix|>.
#include "chat/tools/call_format.h"

namespace sluice::tools::apertus {
namespace {

const CallFormat format{.section_begin = {"<|tools_prefix|>"},
                        .section_end = {"<|tools_suffix|>"},
                        .separator = ", ",
                        .list = true,
                        .body = json_body({.name = ""})};

bool in_template(std::string_view source) { return has_texts(source, {"<|tools_prefix|>"}); }

const ToolSyntax syntax = call_syntax<format>("apertus", in_template, {"apertus2509"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::apertus
