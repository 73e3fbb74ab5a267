// The syntaxes of thoughts: one row each. Tests of templates come in the order of the rows, so that a row need not tell
// its templates from those of earlier rows.
#include "chat/reasoning_syntax.h"
#include "chat/tool_syntax.h"

namespace sluice {
namespace {

using TemplateText = std::string_view;
bool has(TemplateText source, std::string_view text) { return source.find(text) != TemplateText::npos; }

// <think>...</think>
ReasoningSyntax think(std::string_view name, std::vector<std::string_view> aliases = {}) {
  ReasoningSyntax syntax{.name = name};
  syntax.aliases = std::move(aliases);
  syntax.begin = {"<think>"};
  syntax.end = {"</think>"};
  return syntax;
}

ReasoningSyntax harmony() {
  ReasoningSyntax s{.name = "openai_gptoss", .aliases = {"openai", "gpt_oss", "gpt-oss", "harmony"}};
  s.begin = {"<|channel|>analysis<|message|>"};
  s.end = {"<|end|>"};
  s.turn = "<|start|>assistant";
  s.answer_head = "<|channel|>final<|message|>";
  s.reopens = true;
  s.tools = "openai";
  s.in_template = [](TemplateText t) { return has(t, "<|channel|>analysis"); };
  return s;
}

ReasoningSyntax cohere() {
  ReasoningSyntax s{.name = "cohere_command3", .aliases = {"cohere_command4", "cohere"}};
  s.begin = {"<|START_THINKING|>"};
  s.end = {"<|END_THINKING|>"};
  s.cut = {"<|START_ACTION|>"};
  s.answer_begin = {"<|START_RESPONSE|>", "<|START_TEXT|>"};
  s.answer_end = {"<|END_RESPONSE|>", "<|END_TEXT|>"};
  s.in_template = [](TemplateText t) { return has(t, "<|START_THINKING|>"); };
  return s;
}

ReasoningSyntax gemma4() {
  ReasoningSyntax s{.name = "gemma4"};
  s.begin = {"<|channel>thought\n", "<|channel>thought", "<|channel>"};
  s.end = {"<channel|>"};
  s.cut = {"<|tool_call>"};
  s.in_template = [](TemplateText t) { return has(t, "<|channel>thought"); };
  return s;
}

ReasoningSyntax mistral() {
  ReasoningSyntax s{.name = "mistral"};
  s.begin = {"[THINK]"};
  s.end = {"[/THINK]"};
  s.cut = {"[TOOL_CALLS]"};
  s.in_template = [](TemplateText t) { return has(t, "[THINK]"); };
  return s;
}

ReasoningSyntax granite() {
  ReasoningSyntax s{.name = "granite"};
  s.begin = {"Here is my thought process:", "Here's my thought process:"};
  s.end = {"Here is my response:", "Here's my response:"};
  s.in_template = [](TemplateText t) { return has(t, "Here is my thought process"); };
  return s;
}

ReasoningSyntax seed_oss() {
  ReasoningSyntax s{.name = "seed_oss"};
  s.begin = {"<seed:think>"};
  s.end = {"</seed:think>"};
  s.cut = {"<seed:tool_call>"};
  s.by_default = true;
  s.in_template = [](TemplateText t) { return has(t, "seed:think"); };
  return s;
}

ReasoningSyntax apertus() {
  ReasoningSyntax s{.name = "apertus"};
  s.begin = {"<|inner_prefix|>"};
  s.end = {"<|inner_suffix|>"};
  s.cut = {"<|tools_prefix|>"};
  s.in_template = [](TemplateText t) { return has(t, "<|inner_prefix|>"); };
  return s;
}

ReasoningSyntax hunyuan() {
  ReasoningSyntax s = think("hunyuan_a13b");
  s.answer_begin = {"<answer>"};
  s.answer_end = {"\n</answer>", "</answer>"};
  s.in_template = [](TemplateText t) { return has(t, "<think>") && has(t, "<answer>"); };
  return s;
}

ReasoningSyntax ernie45() {
  ReasoningSyntax s = think("ernie45");
  s.answer_begin = {"<response>"};
  s.answer_end = {"\n</response>", "</response>"};
  s.by_default = true;
  s.in_template = [](TemplateText t) { return has(t, "<think>") && has(t, "<response>"); };
  return s;
}

ReasoningSyntax kimi_k2() {
  ReasoningSyntax s = think("kimi_k2");
  s.cut = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>"};
  s.by_default = true;
  s.in_template = [](TemplateText t) { return has(t, "<think>") && has(t, "<|tool_calls_section_begin|>"); };
  return s;
}

// The older templates of DeepSeek R1 leave the begin to the model, which sometimes forgets it.
ReasoningSyntax deepseek_r1() {
  ReasoningSyntax s = think("deepseek_r1", {"step5"});
  s.cut = {"<｜tool▁calls▁begin｜>"};
  s.always = true;
  s.in_template = [](TemplateText t) { return has(t, "<｜Assistant｜>") && has(t, "</think>") && !has(t, "<think>"); };
  return s;
}

ReasoningSyntax deepseek_v3() {
  ReasoningSyntax s = think("deepseek_v3", {"deepseek_v31", "deepseek_v4", "deepseek_v41"});
  s.cut = {"<｜tool▁calls▁begin｜>", "<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜ calls>"};
  s.in_template = [](TemplateText t) { return has(t, "<｜Assistant｜>") && has(t, "</think>"); };
  return s;
}

ReasoningSyntax minimax_m2(bool keep) {
  ReasoningSyntax s = think(keep ? "minimax_m2_append_think" : "minimax_m2");
  s.always = true;
  s.keep = keep;
  s.cut = {"<minimax:tool_call>"};
  if (!keep) s.in_template = [](TemplateText t) { return has(t, "]~b]") && has(t, "<think>"); };
  return s;
}

ReasoningSyntax minimax_m3() {
  ReasoningSyntax s{.name = "minimax_m3"};
  s.begin = {"<mm:think>"};
  s.end = {"</mm:think>"};
  s.in_template = [](TemplateText t) { return has(t, "mm:think>"); };
  return s;
}

ReasoningSyntax plamo3() {
  ReasoningSyntax s{.name = "plamo3"};
  s.begin = {"<|plamo:begin_think:plamo|>"};
  s.end = {"<|plamo:end_think:plamo|>"};
  s.cut = {"<|plamo:begin_tool_requests:plamo|>"};
  s.by_default = true;
  s.in_template = [](TemplateText t) { return has(t, "plamo:begin_think"); };
  return s;
}

ReasoningSyntax glm45() {
  ReasoningSyntax s = think("glm45", {"glm47", "ling3"});
  s.cut = {"<tool_call>"};
  s.in_template = [](TemplateText t) { return has(t, "[gMASK]") && has(t, "</think>"); };
  return s;
}

ReasoningSyntax step3() {
  ReasoningSyntax s = think("step3");
  s.always = true;
  return s;
}

ReasoningSyntax by_default(ReasoningSyntax s) {
  s.by_default = true;
  return s;
}

ReasoningSyntax cut_at(std::string_view mark, ReasoningSyntax s) {
  s.cut = {std::string(mark)};
  return s;
}

constexpr std::string_view kQwenCall = "<tool_call>\n<function=";

// Qwen's models may call a tool within a thought.
ReasoningSyntax qwen3() {
  ReasoningSyntax s = cut_at(kQwenCall, by_default(think("qwen3", {"mimo", "exaone4", "smollm3", "think"})));
  s.in_template = [](TemplateText t) { return has(t, "<think>") || has(t, "</think>"); };
  return s;
}

const ReasoningSyntax kAll[] = {harmony(),
                                cohere(),
                                gemma4(),
                                mistral(),
                                granite(),
                                seed_oss(),
                                apertus(),
                                hunyuan(),
                                ernie45(),
                                kimi_k2(),
                                deepseek_r1(),
                                deepseek_v3(),
                                minimax_m2(false),
                                minimax_m2(true),
                                minimax_m3(),
                                plamo3(),
                                glm45(),
                                step3(),
                                cut_at(kQwenCall, by_default(think("step3p5"))),
                                by_default(think("olmo3")),
                                cut_at(kQwenCall, by_default(think("nemotron_v3", {"granite_thinking_parser"}))),
                                by_default(think("holo2")),
                                cut_at("<tool_calls>", think("hy_v3")),
                                cut_at("<tool_call>", think("poolside_v1")),
                                qwen3()};

}  // namespace

std::vector<const ReasoningSyntax*> reasoning_syntaxes() {
  std::vector<const ReasoningSyntax*> all;
  for (const ReasoningSyntax& syntax : kAll) {
    if (syntax.tools.empty() || tool_syntax(syntax.tools) != nullptr) all.push_back(&syntax);
  }
  return all;
}

}  // namespace sluice
