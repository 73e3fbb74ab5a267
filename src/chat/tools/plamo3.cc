// PLaMo 3: marks around all calls, each call, its name and its arguments as JSON.
#include "chat/tools/call_format.h"

namespace sluice::tools::plamo3 {
namespace {

std::string begin(const std::string& part) { return "<|plamo:begin_" + part + ":plamo|>"; }
std::string end(const std::string& part) { return "<|plamo:end_" + part + ":plamo|>"; }

const CallFormat format{.section_begin = {begin("tool_requests")},
                        .section_end = {end("tool_requests")},
                        .call_begin = {begin("tool_request")},
                        .call_end = {end("tool_arguments") + end("tool_request")},
                        .body = named_body({.prefix = begin("tool_name"),
                                            .between = end("tool_name") + begin("tool_arguments") +
                                                       "<|plamo:constrain|>json<|plamo:msg|>"})};

bool in_template(std::string_view source) { return has_texts(source, {"plamo:begin_", "tool_request"}); }

const ToolSyntax syntax = call_syntax<format>("plamo3", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::plamo3
