// Answers in Harmony: channels, calls and thoughts.
#include <gtest/gtest.h>

#include <chrono>

#include "base/json.h"
#include "chat/tools/harmony.h"
#include "chat/tools/testing.h"

namespace sluice::tool_testing::harmony_test {
namespace {

// The answer in a line: kinds and texts of its parts.
std::string parts_of(const std::vector<std::string>& pieces, const ToolFunctions& functions = {}) {
  const auto parser = make_harmony_parser(std::make_shared<const ToolFunctions>(functions));
  std::vector<Delta> deltas;
  for (const std::string& piece : pieces) parser->push(piece, deltas);
  parser->finish(deltas);
  std::string out, last;
  const auto add = [&](const std::string& kind, const std::string& text) {
    EXPECT_NE(text, "");
    if (kind != last) out += (out.empty() ? "" : " | ") + kind + ":";
    last = kind;
    out += text;
  };
  for (const Delta& delta : deltas) {
    if (const auto* d = std::get_if<TextDelta>(&delta)) add("text", d->text);
    if (const auto* d = std::get_if<ReasoningDelta>(&delta)) add("thought", d->text);
    if (const auto* d = std::get_if<ToolCallBegin>(&delta)) add("call " + std::to_string(d->index), d->name + " ");
    if (const auto* d = std::get_if<ToolCallArguments>(&delta)) add("call " + std::to_string(d->index), d->json);
  }
  return out;
}

void expect_parts(const std::string& text, const std::string& parts, const ToolFunctions& functions = {}) {
  ASSERT_EQ(parts_of({text}, functions), parts) << text;
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  ASSERT_EQ(parts_of(bytes, functions), parts) << text;
  for (size_t i = 0; i <= text.size(); ++i) {
    ASSERT_EQ(parts_of({text.substr(0, i), text.substr(i)}, functions), parts) << text << " split at " << i;
  }
}

TEST(Harmony, ChannelsAreParsed) {
  expect_parts(
      "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
      "thought:Hm <b>. | text:Hello");
  expect_parts("<|channel|>final<|message|>Hello", "text:Hello");
  expect_parts("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "text:{}");
  expect_parts("<|channel|>analysis<|message|>cut <|en", "thought:cut <|en");
  expect_parts(
      "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
      "text:I will look. | call 0:f {\"a\": 1}");
  expect_parts("Plain text", "text:Plain text");
  expect_parts("to be", "text:to be");
  expect_parts(" \n", "text: \n");
  expect_parts("", "");
  expect_parts("<|message|>Hello", "text:Hello");
}

TEST(Harmony, CallsAreParsed) {
  expect_parts(" to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>", "call 0:f {\"a\": 1}");
  expect_parts(
      "<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.get-it<|channel|>commentary "
      "<|constrain|>json<|message|>\n{\"a\": \"<b>\"}<|call|><|start|>assistant<|channel|>commentary "
      "to=functions.g<|message|><|call|>",
      "thought:A | call 0:get-it {\"a\": \"<b>\"} | call 1:g {}");
  expect_parts("<|channel|>analysis to=functions.f<|message|>{}<|call|>", "call 0:f {}");
  expect_parts("<|channel|>commentary to=f <|constrain|>json<|message|>{\"cut", "call 0:f {\"cut");
  // Tools of the model's training, unless the request has them.
  expect_parts("<|channel|>analysis to=python code<|message|>1+1<|call|>", "thought:1+1");
  expect_parts("<|channel|>analysis to=python code<|message|>1<|call|>", "call 0:python 1", {{.name = "python"}});
}

TEST(Harmony, TakesWhatIsMalformed) {
  // A new header without an end of the message.
  expect_parts("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B", "thought:A | text:B");
  expect_parts("<|channel|>analysis<|message|>A<|channel|>final<|message|>B", "thought:A | text:B");
  // Text without a header, and headers without a message.
  expect_parts("<|channel|>analysis<|message|>A<|end|>B", "thought:A | text:B");
  expect_parts("<|channel|>analysis<|end|><|channel|>final<|message|>B", "text:B");
  expect_parts("<|channel|>ana", "");
  const std::string many(600, 'x');
  expect_parts("<|channel|>" + many, "text:<|channel|>" + many);
}

TEST(Harmony, HostileAnswersTakeLinearTime) {
  for (const std::string begin : {"", "<|channel|>", "<|channel|>analysis<|message|>", "to="}) {
    for (const std::string piece : {"<|channel|>", "<|start|>", "<|", " ", "x", "to=", "<|message|>", "<|end|>"}) {
      std::string text = begin;
      while (text.size() < kHostileBytes) text += piece;
      std::vector<std::string> bytes;
      for (const char c : text) bytes.emplace_back(1, c);
      const auto start = std::chrono::steady_clock::now();
      const auto parser = make_harmony_parser(nullptr);
      std::vector<Delta> deltas;
      for (std::string& byte : bytes) {
        parser->push(std::move(byte), deltas);
        deltas.clear();
      }
      parser->finish(deltas);
      make_harmony_parser(nullptr)->push(text, deltas);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << begin << " and many " << piece;
    }
  }
}

const std::vector<std::string> kSpecial = {"<|start|>",     "<|channel|>", "<|message|>", "<|end|>",
                                           "<|constrain|>", "<|call|>",    "<|return|>"};

CallGrammar calls_of(bool required, bool parallel) {
  return {.functions = {{.name = "f",
                         .parameters = parse_json(R"({"properties": {"a": {"type": "string"}}, "required": ["a"],
                                                     "additionalProperties": false})")}},
          .required = required,
          .parallel = parallel};
}

TEST(Harmony, GrammarHasWhatTheParserReads) {
  const std::string thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant",
                    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"x\"}",
                    other = " to=functions.f<|channel|>commentary json<|message|>{\"a\": \"x\"}<|call|>",
                    final = "<|channel|>final<|message|>Hello";
  for (const auto& special : {kSpecial, std::vector<std::string>()}) {
    const auto allowed = [&](bool required, bool parallel, const std::string& text) {
      return accepts("openai", calls_of(required, parallel), text, special);
    };
    EXPECT_TRUE(allowed(true, true, call));
    EXPECT_TRUE(allowed(true, true, other));
    EXPECT_TRUE(allowed(true, true, thought + thought + other));
    EXPECT_TRUE(allowed(true, true, other + "<|start|>assistant" + thought + call));
    EXPECT_FALSE(allowed(true, false, other + "<|start|>assistant" + call));
    EXPECT_FALSE(allowed(true, true, thought + final));
    EXPECT_FALSE(allowed(true, true, thought));
    EXPECT_FALSE(allowed(true, true, "Hello"));
    EXPECT_TRUE(allowed(false, true, thought + final));
    EXPECT_TRUE(allowed(false, true, final + "<|return|>"));
    EXPECT_TRUE(allowed(false, true, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + call));
    EXPECT_FALSE(allowed(false, true, "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}"));
    EXPECT_FALSE(allowed(false, true, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"));
    EXPECT_FALSE(
        allowed(true, true, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|x\"}"));
  }
}

TEST(Harmony, IsFoundInTemplates) {
  EXPECT_EQ(find_tool_syntax("<|start|>assistant<|channel|>final<|message|>"), tool_syntax("openai"));
  EXPECT_EQ(tool_syntax("gpt_oss"), tool_syntax("openai"));
}

}  // namespace
}  // namespace sluice::tool_testing::harmony_test
