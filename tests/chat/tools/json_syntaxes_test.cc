// The syntaxes whose calls are JSON, or a name and JSON: what their parsers read, and that grammar, parser and
// templates agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "chat/tools/testing.h"

namespace sluice::tool_testing::json_syntaxes_test {
namespace {

const std::string kCalls = "<｜tool▁calls▁begin｜>", kCallsEnd = "<｜tool▁calls▁end｜>",
                  kCall = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>", kSep = "<｜tool▁sep｜>";

struct Syntax {
  std::string_view name;
  std::vector<std::string> special;  // what may be special tokens of a vocabulary
  std::vector<Answer> answers;
};

// The two calls of most answers.
const std::vector<Call> kTwo = {{"f", R"({"a": [1, "]}"]})"}, {"g", "{}"}};

const std::vector<Syntax> kSyntaxes = {
    {"llama3_json",
     {"<|python_tag|>"},
     {{R"({"name": "f", "parameters": {"a": [1, "]}"]}}; {"name": "g", "parameters": {}})", {"", kTwo}},
      {R"({"name": "f", "parameters": {"a": [1, "]}"]}}{"name": "g", "arguments": {}})", {"", kTwo}},
      {"\n<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": [1, \"]}\"]}};{\"name\": \"g\", \"parameters\": {}}",
       {"", kTwo}},
      {R"({"type": "function", "name": "g", "parameters": {}})", {"", {{"g", "{}"}}}},
      {R"({"type": "function", "function": {"name": "g", "parameters": {}}})", {"", {{"g", "{}"}}}},
      {R"({"name": "g", "parameters": "{\"a\": 1}"})", {"", {{"g", R"({"a": 1})"}}}},
      {"{\"city\": \"Paris\"}", {"{\"city\": \"Paris\"}", {}}},
      {"{\"name\": \"Paris\"}", {"{\"name\": \"Paris\"}", {}}},
      {"Say {\"name\": \"g\", \"parameters\": {}}", {"Say {\"name\": \"g\", \"parameters\": {}}", {}}},
      {"I will. <|python_tag|>{\"name\": \"g\", \"parameters\": {}}", {"I will.", {{"g", "{}"}}}},
      {"<|python_tag|>print(1)", {"<|python_tag|>print(1)", {}}},
      {"{\"name\": \"g\", \"parameters\": {}} and more", {" and more", {{"g", "{}"}}}}}},
    {"mistral_v3",
     {"[TOOL_CALLS]"},
     {{R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}])", {"", kTwo}},
      {R"(Sure.[TOOL_CALLS][{"arguments": {}, "id": "abcdefghi", "name": "g"}])", {"Sure.", {{"g", "{}"}}}},
      {R"([TOOL_CALLS][{"name": "g", "arguments": {}, "id": "abcdefghi"}])", {"", {{"g", "{}"}}}},
      {R"([TOOL_CALLS]{"name": "g", "arguments": {}})", {"", {{"g", "{}"}}}},
      {"[TOOL_CALLS][]", {"[TOOL_CALLS][]", {}}},
      {R"([TOOL_CALLS][{"name": "g", "arguments": {}}, 5])", {", 5]", {{"g", "{}"}}}}}},
    {"mistral",
     {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
     {{R"([TOOL_CALLS]f[ARGS]{"a": [1, "]}"]}[TOOL_CALLS]g[ARGS]{})", {"", kTwo}},
      {R"(Hi [TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{})", {"Hi", {{"g", "{}", "abcdefghi"}}}},
      {R"([TOOL_CALLS]f{"a": 3.5})", {"", {{"f", R"({"a": 3.5})"}}}},
      {R"([TOOL_CALLS][{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}])", {"", kTwo}},
      {"[TOOL_CALLS]g[ARGS]{} so h{}", {" so h{}", {{"g", "{}"}}}},
      {"[TOOL_CALLS]g[ARGS]5", {"[TOOL_CALLS]g[ARGS]5", {}}},
      {"[TOOL_CALLS]a b{}", {"[TOOL_CALLS]a b{}", {}}}}},
    {"deepseek_v3",
     {kCalls, kCallsEnd, kCall, kCallEnd, kSep},
     {{"Ok.\n" + kCalls + kCall + "function" + kSep + "f\n```json\n{\"a\": [1, \"]}\"]}\n```" + kCallEnd + "\n" +
           kCall + "function" + kSep + "g\n```json\n{}\n```" + kCallEnd + kCallsEnd,
       {"Ok.", kTwo}},
      {kCalls + "function" + kSep + "g\n```json\n{}\n```" + kCallsEnd, {"", {{"g", "{}"}}}},
      {"<｜tool calls begin｜>" + kCall + "function" + kSep + "g\n{}" + kCallEnd, {"", {{"g", "{}"}}}},
      {kCalls + kCall + "other", {kCalls + kCall + "other", {}}}}},
    {"deepseek_v31",
     {kCalls, kCallsEnd, kCall, kCallEnd, kSep},
     {{"Ok." + kCalls + kCall + "f" + kSep + "{\"a\": [1, \"]}\"]}" + kCallEnd + kCall + "g" + kSep + "{}" + kCallEnd +
           kCallsEnd,
       {"Ok.", kTwo}},
      {kCalls + kCall + "g" + kSep + "{\"a\": 1", {"", {{"g", "{\"a\": 1"}}}},
      {kCalls + kCall + "g" + kSep + "{}" + kCallsEnd + "bye", {"bye", {{"g", "{}"}}}},
      {"Ok " + kCall + "g" + kSep + "{}" + kCallEnd, {"Ok", {{"g", "{}"}}}},
      {kCalls + kCallsEnd, {kCalls + kCallsEnd, {}}}}},
    {"kimi_k2",
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
      "<|tool_call_argument_begin|>"},
     {{"I see. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": [1, "
       "\"]}\"]}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       {"I see.", {{"f", R"({"a": [1, "]}"]})", "functions.f:0"}, {"g", "{}", "functions.g:1"}}}},
      {"<|tool_calls_section_begin|> <|tool_call_begin|> mcp.a:b:12 <|tool_call_argument_begin|> {} <|tool_call_end|> "
       "<|tool_calls_section_end|>",
       {"", {{"mcp.a:b", "{}", "mcp.a:b:12"}}}},
      {"<|tool_calls_section_begin|><|tool_call_begin|>functions.g<|tool_call_argument_begin|>{}",
       {"", {{"g", "{}", ""}}}},
      // Without a section, and with arguments that are not closed.
      {"Ok <|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}", {"Ok", {{"g", "{}", "functions.g:0"}}}},
      {"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{\"a\": "
       "fasle<|tool_call_end|>"
       "<|tool_call_begin|>functions.g:2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       {"", {{"f", "{\"a\": fasle", "functions.f:1"}, {"g", "{}", "functions.g:2"}}}},
      {"<|tool_call_begin|>", {"<|tool_call_begin|>", {}}}}},
    {"granite",
     {"<|tool_call|>"},
     {{R"(<|tool_call|>[{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}])", {"", kTwo}},
      {R"(<tool_call> [{"name": "g", "arguments": {}}] bye)", {" bye", {{"g", "{}"}}}},
      {"<|tool_call|>[1]", {"<|tool_call|>[1]", {}}}}},
    {"granite-20b-fc",
     {"<function_call>"},
     {{"<function_call> {\"name\": \"f\", \"arguments\": {\"a\": [1, \"]}\"]}}\n<function_call> {\"name\": \"g\", "
       "\"arguments\": {}}",
       {"", kTwo}},
      {"No <function_call> at all", {"No <function_call> at all", {}}}}},
    {"phi4_mini_json",
     {},
     {{R"(functools[{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}])", {"", kTwo}},
      {R"(<|tool_call|>[{"name": "g", "parameters": {}}]<|/tool_call|>)", {"", {{"g", "{}"}}}},
      {"import functools[0]", {"import functools[0]", {}}}}},
    {"internlm",
     {"<|action_start|>", "<|plugin|>", "<|action_end|>"},
     {{"Ok<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": [1, \"]}\"]}}<|action_end|>\n"
       "<|action_start|><|plugin|>\n{\"name\": \"g\", \"arguments\": {}}<|action_end|>\n",
       {"Ok", kTwo}},
      {"<|action_start|><|interpreter|>x", {"<|action_start|><|interpreter|>x", {}}}}},
    {"jamba",
     {"<tool_calls>", "</tool_calls>"},
     {{" <tool_calls>[\n    {\"name\": \"f\", \"arguments\": {\"a\": [1, \"]}\"]}},\n    {\"name\": \"g\", "
       "\"arguments\": {}}\n]</tool_calls> ",
       {"", kTwo}},
      {R"(<tool_calls>{"name": "g", "arguments": {}}</tool_calls>)", {"", {{"g", "{}"}}}},
      {R"(<tool_calls>[{"name": "g", "arguments": {}}</tool_calls>x)", {"x", {{"g", "{}"}}}},
      {"<tool_calls>[]</tool_calls>", {"<tool_calls>[]</tool_calls>", {}}}}},
    {"nemotron_json",
     {"<TOOLCALL>", "</TOOLCALL>"},
     {{R"(<TOOLCALL>[{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}]</TOOLCALL>)",
       {"", kTwo}},
      {R"(Hm.
<TOOLCALL>[{"name": "g", "arguments": "{}"}])",
       {"Hm.", {{"g", "{}"}}}}}},
    {"cohere_command3",
     {"<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     {{"<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": [1, \"]}\"]}},\n"
       "    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
       {"", {{"f", R"({"a": [1, "]}"]})", "0"}, {"g", "{}", "1"}}}},
      {"<|START_ACTION|>\n[\n    {\"tool_call_id\": 3, \"tool_name\": \"g\", \"parameters\": {}}\n]\n<|END_ACTION|>",
       {"", {{"g", "{}", "3"}}}},
      {"<|START_RESPONSE|>Hello.\n<|END_RESPONSE|>", {"Hello.\n", {}}},
      {"<|START_ACTION|>[]<|END_ACTION|>", {"<|START_ACTION|>[]<|END_ACTION|>", {}}}}},
    {"functionary_v3.1",
     {},
     {{"<function=f>{\"a\": [1, \"]}\"]}</function>\n<function=g>{}</function>", {"", kTwo}},
      {"<function=g>{}", {"", {{"g", "{}"}}}},
      {"<function=g></function>", {"<function=g></function>", {}}}}},
    {"xlam",
     {},
     {{R"([{"name": "f", "arguments": {"a": [1, "]}"]}}, {"name": "g", "arguments": {}}])", {"", kTwo}},
      {R"(<tool_call>[{"name": "g", "arguments": {}}]</tool_call>)", {"", {{"g", "{}"}}}},
      {R"(I do. [TOOL_CALLS][{"name": "g", "arguments": {}}])", {"I do.", {{"g", "{}"}}}},
      {"I do.\n```json\n[{\"name\": \"g\", \"arguments\": {}}]\n```", {"I do.", {{"g", "{}"}}}},
      {"So: ```json\n[1]\n```\n", {"So: ```json\n[1]\n```\n", {}}},
      {"[1, 2]", {"[1, 2]", {}}},
      {"[{\"name\": \"Paris\"}]", {"[{\"name\": \"Paris\"}]", {}}}}},
    {"gigachat3",
     {"<|message_sep|>", "<|role_sep|>"},
     {{"Ok.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"]}\"]}}"
       "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}<|message_sep|>\n\n",
       {"Ok.", kTwo}},
      {"function call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}", {"", {{"g", "{}"}}}},
      {"<|function_call|>{\"name\": \"g\", \"arguments\": {}}", {"", {{"g", "{}"}}}},
      {"A function call.<|message_sep|>", {"A function call.", {}}}}},
    {"apertus",
     {"<|tools_prefix|>", "<|tools_suffix|>"},
     {{R"(Ok.<|tools_prefix|>[{"f": {"a": [1, "]}"]}}, {"g": {}}]<|tools_suffix|>)", {"Ok.", kTwo}},
      {R"(<|tools_prefix|>[{"g": "{}"}])", {"", {{"g", "{}"}}}},
      {"<|tools_prefix|>[{}]<|tools_suffix|>", {"<|tools_prefix|>[{}]<|tools_suffix|>", {}}}}},
    {"plamo3",
     {"<|plamo:begin_", "<|plamo:end_", ":plamo|>"},
     {{"Ok.<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f"
       "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
       "{\"a\": [1, \"]}\"]}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
       "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>g<|plamo:end_tool_name:plamo|>"
       "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|>"
       "<|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
       {"Ok.", kTwo}}}},
    {"longcat",
     {},
     {{"<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"]}\"]}}\n</longcat_tool_call>\n"
       "<longcat_tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</longcat_tool_call>",
       {"", kTwo}},
      {"<tool_call>", {"<tool_call>", {}}}}},
    {"ernie45",
     {},
     {{"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"]}\"]}}\n</tool_call>\n\n<tool_call>\n{\"name\": "
       "\"g\", \"arguments\": {}}\n</tool_call>\n",
       {"", kTwo}},
      {"<response>\nHi\n</response>\n", {"\nHi\n\n", {}}}}},
};

TEST(JsonSyntaxes, EverySplitGivesTheSame) {
  for (const Syntax& syntax : kSyntaxes) {
    expect_parsed(syntax.name, syntax.answers);
    for (const char* text : {"Hello {\"name\": 1} [1, 2] <b>x</b>\n", "", "{", " [ ", "é<"}) {
      expect_parsed(syntax.name, {{text, {text, {}}}});
    }
  }
}

// A text without marks and white space.
std::string squeezed(std::string text, const std::vector<std::string>& marks) {
  for (const std::string& mark : marks) {
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark)) text.erase(at, mark.size());
  }
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

TEST(JsonSyntaxes, AnswersMayBeCutOff) {
  for (const Syntax& syntax : kSyntaxes) {
    const std::string& text = syntax.answers.front().text;
    const Parsed whole = parse(syntax.name, {text});
    for (size_t size = 0; size < text.size(); ++size) {
      SCOPED_TRACE(std::string(syntax.name) + ": " + text.substr(0, size));
      const Parsed cut = parse(syntax.name, {text.substr(0, size)});
      ASSERT_LE(cut.calls.size(), whole.calls.size());
      for (size_t i = 0; i < cut.calls.size(); ++i) {
        EXPECT_EQ(cut.calls[i].name, whole.calls[i].name);
        EXPECT_TRUE(whole.calls[i].arguments.starts_with(cut.calls[i].arguments)) << cut.calls[i].arguments;
      }
      if (!cut.calls.empty()) continue;
      EXPECT_EQ(squeezed(cut.text, syntax.special), squeezed(text.substr(0, size), syntax.special));
    }
  }
}

TEST(JsonSyntaxes, HostileAnswersTakeLinearTime) {
  for (const Syntax& syntax : kSyntaxes) {
    const std::string& text = syntax.answers.front().text;
    const size_t quoted = text.find("\"f\""), name = quoted == std::string::npos ? text.find("f") : quoted;
    const std::string opening = text.substr(0, name);
    const std::string arguments = text.substr(0, text.find('[', name));  // up to within them
    expect_linear(syntax.name, {opening, arguments}, {opening.empty() ? "x" : opening, " ", "{", "\","}, 200'000);
  }
}

TEST(JsonSyntaxes, AnswersOfTheGrammarAreParsed) {
  for (const Syntax& syntax : kSyntaxes) {
    expect_round_trip(syntax.name, {.rounds = 12});
    if (!syntax.special.empty()) expect_round_trip(syntax.name, {.special = syntax.special, .rounds = 12});
  }
}

TEST(JsonSyntaxes, WhatGrammarsAllowIsSound) {
  for (const Syntax& syntax : kSyntaxes) {
    std::vector<std::string> texts;
    for (const Answer& answer : syntax.answers) texts.push_back(answer.text);
    expect_sound(syntax.name, texts);
    if (!syntax.special.empty()) expect_sound(syntax.name, texts, syntax.special);
  }
}

TEST(JsonSyntaxes, GrammarsForbidOtherFunctionsAfterText) {
  const CallGrammar calls{.functions = {{.name = "g"}}, .parallel = true};
  for (const Syntax& syntax : kSyntaxes) {
    SCOPED_TRACE(syntax.name);
    for (const Answer& answer : syntax.answers) {
      const bool other = std::ranges::any_of(answer.expected.calls, [](const Call& c) { return c.name != "g"; });
      if (other) {
        EXPECT_FALSE(accepts(syntax.name, calls, answer.text, syntax.special)) << answer.text;
      }
    }
    EXPECT_TRUE(accepts(syntax.name, calls, "Hello {} [] <b>\n", syntax.special));
  }
}

TEST(JsonSyntaxes, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const ToolSyntax* syntax : Registry<ToolSyntax>::all()) {
    EXPECT_TRUE(names.insert(syntax->name).second) << syntax->name;
    for (const std::string_view alias : syntax->aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

// The syntax of each template; empty: it writes no calls.
const std::map<std::string, std::string> kTemplates = {
    {"Apertus-8B-Instruct", "apertus"},
    {"Bielik-11B-v3.0-Instruct", "hermes"},
    {"Cohere2MoE", "cohere_command3"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere_command3"},
    {"GigaChat3-10B-A1.8B", "gigachat3"},
    {"HuggingFaceTB-SmolLM3-3B", ""},
    {"Kimi-K2-Thinking", "kimi_k2"},
    {"MiroThinker", "hermes"},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"},
    {"Qwen-Qwen2.5-7B-Instruct", "hermes"},
    {"Reka-Edge", "hermes"},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek_v3"},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek_v31"},
    {"google-gemma-2-2b-it", ""},
    {"llama-cpp-deepseek-r1", "deepseek_v3"},
    {"meetkai-functionary-medium-v3.1", "functionary_v3.1"},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama3_json"},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama3_json"},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral"},
    {"moonshotai-Kimi-K2", "kimi_k2"},
    {"unsloth-mistral-Devstral-Small-2507", "mistral"},
};

TEST(JsonSyntaxes, ATemplateHasOneSyntax) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (!goldens) GTEST_SKIP() << "SLUICE_GOLDENS is not set: the syntaxes of public chat templates were not checked";
  size_t known = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(goldens) / "chat_template")) {
    if (entry.path().extension() != ".jinja") continue;
    SCOPED_TRACE(entry.path().stem().string());
    std::ifstream in(entry.path());
    const std::string source((std::istreambuf_iterator<char>(in)), {});
    std::string found;
    for (const ToolSyntax* syntax : Registry<ToolSyntax>::all()) {
      if (syntax->in_template(source)) found += (found.empty() ? "" : ", ") + std::string(syntax->name);
    }
    const auto it = kTemplates.find(entry.path().stem().string());
    if (it == kTemplates.end()) {
      EXPECT_EQ(found.find(','), std::string::npos) << found;
    } else {
      EXPECT_EQ(found, it->second);
      ++known;
    }
  }
  EXPECT_EQ(known, kTemplates.size());
}

}  // namespace
}  // namespace sluice::tool_testing::json_syntaxes_test
