// Calls in Python: [f(a=1), g(b="x")] as the whole answer, or between the marks of a model.
#include "chat/tools/call_format.h"

namespace sluice {
namespace {

const CallFormat bare{.separator = ", ", .list = true, .bare = "[", .text_after = false, .body = python_body()};
const CallFormat llama4{.section_begin = {"<|python_start|>"},
                        .section_end = {"", "<|python_end|>"},
                        .separator = ", ",
                        .list = true,
                        .bare = "[",
                        .text_after = false,
                        .body = python_body()};
const CallFormat olmo{.section_begin = {"<function_calls>"},
                      .section_end = {"</function_calls>"},
                      .separator = "\n",
                      .body = python_body()};
const CallFormat lfm{.section_begin = {"<|tool_call_start|>"},
                     .section_end = {"<|tool_call_end|>"},
                     .separator = ", ",
                     .list = true,
                     .body = or_json_body(python_body())};

// Templates for calls in Python tell the model so.
constexpr std::string_view kExample = "[func_name1(params_name1=";

bool is_bare(std::string_view source) { return has_texts(source, {kExample}, {"<|python_start|>"}); }
bool is_llama4(std::string_view source) { return has_texts(source, {kExample, "<|python_start|>"}); }
bool is_olmo3(std::string_view source) { return has_texts(source, {"<function_calls>"}, {"DSML"}); }
bool is_lfm2(std::string_view source) {
  return has_texts(source, {"<|tool_call_start|>"}) || has_texts(source, {"\"List of tools: "});
}

const ToolSyntax pythonic = call_syntax<bare>("pythonic", is_bare, {"gemma3", "toolace"});
const ToolSyntax llama4_pythonic = call_syntax<llama4>("llama4_pythonic", is_llama4);
const ToolSyntax olmo3 = call_syntax<olmo>("olmo3", is_olmo3);
const ToolSyntax lfm2 = call_syntax<lfm>("lfm2", is_lfm2);
const Registry<ToolSyntax> register_pythonic{pythonic}, register_llama4{llama4_pythonic}, register_olmo3{olmo3},
    register_lfm2{lfm2};

}  // namespace
}  // namespace sluice
