// Functionary 3.1: <function=f>{...}</function>, several after each other.
#include "chat/tools/call_format.h"

namespace sluice::tools::functionary {
namespace {

const CallFormat format{
    .call_begin = {"<function="}, .call_end = {"</function>"}, .body = named_body({.between = ">"})};

bool in_template(std::string_view source) {
  return has_texts(source, {"<function=", "</function>"}, {"<parameter=", "<tool_call>"});
}

const ToolSyntax syntax = call_syntax<format>("functionary_v3.1", in_template, {"functionary"});
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::functionary
