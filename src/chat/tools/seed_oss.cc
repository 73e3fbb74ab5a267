// Seed-OSS: <seed:tool_call>\n<function=f>\n<parameter=k>v</parameter>\n</function>\n</seed:tool_call>. A value of
// several lines stands between line breaks, and so does each that the grammar writes.
#include "chat/tools/call_format.h"

namespace sluice::tools::seed_oss {
namespace {

const CallFormat format{.call_begin = {"<seed:tool_call>\n"},
                        .call_end = {"\n</seed:tool_call>"},
                        .separator = "\n",
                        .body = tagged_body({.name_begin = "<function=",
                                             .name_end = ">\n",
                                             .parameter_begin = "<parameter=",
                                             .parameter_end = ">",
                                             .value_begin = "\n",
                                             .value_end = "\n</parameter>\n",
                                             .body_end = "</function>"})};

bool in_template(std::string_view source) { return has_texts(source, {"<seed:tool_call>"}); }

const ToolSyntax syntax = call_syntax<format>("seed_oss", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::seed_oss
