// Step 3 (StepTML): a section with <｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">
// <steptml:parameter name="k">v</steptml:parameter></steptml:invoke><｜tool_call_end｜>.
#include "chat/tools/call_format.h"

namespace sluice::tools::step3 {
namespace {

const CallFormat format{.section_begin = {"<｜tool_calls_begin｜>\n"},
                        .section_end = {"\n<｜tool_calls_end｜>"},
                        .call_begin = {"<｜tool_call_begin｜>function<｜tool_sep｜>"},
                        .call_end = {"<｜tool_call_end｜>"},
                        .separator = "\n",
                        .body = tagged_body({.name_begin = "<steptml:invoke name=\"",
                                             .name_end = "\">\n",
                                             .parameter_begin = "<steptml:parameter name=\"",
                                             .parameter_end = "\">",
                                             .value_end = "</steptml:parameter>\n",
                                             .body_end = "</steptml:invoke>",
                                             .strip_newlines = false})};

bool in_template(std::string_view source) { return has_texts(source, {"steptml:"}); }

const ToolSyntax syntax = call_syntax<format>("step3", in_template);
const Registry<ToolSyntax> registered{syntax};

}  // namespace
}  // namespace sluice::tools::step3
