// DeepSeek: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
// since V3.1, and with "function<｜tool▁sep｜>f\n```json\n{...}\n```" as a call in V3 and R1.
#include "chat/tools/call_format.h"

namespace sluice::tools::deepseek {
namespace {

// Distilled models have no tokens for the marks and write them with other blanks.
const CallFormat v3{.section_begin = {"<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>",
                                      "<｜tool\\_calls\\_begin｜>", "<｜tool▁calls｜>"},
                    .section_end = {"<｜tool▁calls▁end｜>", "<｜tool_calls_end｜>", "<｜tool calls end｜>"},
                    .call_begin = {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "function<｜tool▁sep｜>"},
                    .call_end = {"\n```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>", "```"},
                    .unmarked = {"<｜tool▁call▁begin｜>"},
                    .separator = "\n",
                    .body = named_body({.between = "\n```json\n"})};

const CallFormat v31{.section_begin = {"<｜tool▁calls▁begin｜>"},
                     .section_end = {"<｜tool▁calls▁end｜>"},
                     .call_begin = {"<｜tool▁call▁begin｜>"},
                     .call_end = {"<｜tool▁call▁end｜>"},
                     .unmarked = {"<｜tool▁call▁begin｜>"},
                     .body = named_body({.between = "<｜tool▁sep｜>"})};

bool in_v3(std::string_view source) { return has_texts(source, {"<｜tool▁calls▁begin｜>", "```json"}); }
bool in_v31(std::string_view source) { return has_texts(source, {"<｜tool▁calls▁begin｜>"}, {"```json"}); }

const ToolSyntax syntaxes[] = {call_syntax<v3>("deepseek_v3", in_v3, {"deepseekv3"}),
                               call_syntax<v31>("deepseek_v31", in_v31, {"deepseekv31"})};
const Registry<ToolSyntax> registered[] = {Registry<ToolSyntax>(syntaxes[0]), Registry<ToolSyntax>(syntaxes[1])};

}  // namespace
}  // namespace sluice::tools::deepseek
