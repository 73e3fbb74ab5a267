// Gemma 4: <|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>. FunctionGemma has other marks.
#include "chat/tools/call_format.h"

namespace sluice::tools::gemma4 {
namespace {

const CallFormat gemma{.call_begin = {"<|tool_call>"}, .call_end = {"<tool_call|>"}, .body = gemma_body("<|\"|>")};
const CallFormat function_gemma{
    .call_begin = {"<start_function_call>"}, .call_end = {"<end_function_call>"}, .body = gemma_body("<escape>")};

bool is_gemma(std::string_view source) { return has_texts(source, {"<|tool_call>call:"}); }
bool is_function_gemma(std::string_view source) { return has_texts(source, {"<start_function_call>call:"}); }

const ToolSyntax gemma4 = call_syntax<gemma>("gemma4", is_gemma);
const ToolSyntax functiongemma = call_syntax<function_gemma>("functiongemma", is_function_gemma);
const Registry<ToolSyntax> register_gemma4{gemma4}, register_functiongemma{functiongemma};

}  // namespace
}  // namespace sluice::tools::gemma4
