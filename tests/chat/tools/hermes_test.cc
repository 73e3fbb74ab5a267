// Calls in the syntax of Hermes: every split of an answer gives the same, and the grammar's answers are parsed.
#include <gtest/gtest.h>

#include "chat/tools/testing.h"

namespace sluice::tool_testing::hermes_test {
namespace {

const std::vector<Answer> kAnswers = {
    {"Hello <b>world</b>\n", {"Hello <b>world</b>\n", {}}},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}]\\\"{\", \"b\": [1, {}]}}\n</tool_call>",
     {"", {{"f", "{\"a\": \"}]\\\"{\", \"b\": [1, {}]}"}}}},
    {"Let me see.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call>{\"name\": \"g\", "
     "\"arguments\": {\"x\": 1}}</tool_call>",
     {"Let me see.", {{"f", "{}"}, {"g", "{\"x\": 1}"}}}},
    {"<tool_call>{\"arguments\": {\"x\":1}, \"name\": \"g\"}</tool_call> done", {" done", {{"g", "{\"x\":1}"}}}},
    {"a <tool_call>no call</tool_call>b", {"a <tool_call>no call</tool_call>b", {}}},
    {"a <tool_call>{\"name\": 5}", {"a <tool_call>{\"name\": 5}", {}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut", {"", {{"f", "{\"a\": \"cut"}}}},
    {"<tool_cal", {"<tool_cal", {}}},
    {"<<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {"<", {{"f", "{}"}}}},
    // An end that is missing, within an answer and at its end.
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}<tool_call>{\"name\": \"g\", \"parameters\": {}}",
     {"", {{"f", "{}"}, {"g", "{}"}}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>", {"", {{"f", "{}"}}}},
    // Other forms of the object.
    {"<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}}"
     "</tool_call>\n",
     {"", {{"f", "{\"a\": 1}"}}}},
    {"<tool_call>{\"id\": [\"name\"], \"name\": \"f\\u00e9\", \"arguments\": null, \"x\": {}}</tool_call>",
     {"", {{"fé", "{}"}}}},
    {"<tool_call>{\"name\": \"f\"}</tool_call>", {"<tool_call>{\"name\": \"f\"}</tool_call>", {}}},
    {"<tool_call>{\"name\": \"known\"}</tool_call>", {"", {{"known", "{}"}}}},
    {"<tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {"<tool_call>", {{"f", "{}"}}}},
};

TEST(Hermes, EverySplitGivesTheSame) { expect_parsed("hermes", kAnswers, {{.name = "known"}}); }

TEST(Hermes, HostileAnswersTakeLinearTime) {
  expect_linear("hermes", {"<tool_call>{\"name\": \""},
                {"<", "<tool_call>", "{", "<tool_call>{\"name\": \"f\", \"arguments\": {", " "});
  expect_linear("hermes", {"<tool_call>{\"arguments\": "},
                {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "<tool_call>{\"arguments\": [",
                 "<tool_call>{\"arguments\": \"<tool_call>{\\\"", "\":\"", "\",\":\":\""},
                200'000);
}

CallGrammar calls(bool required, bool parallel) {
  const Json weather = {{"type", "object"},
                        {"properties", {{"city", {{"type", "string"}}}}},
                        {"required", {"city"}},
                        {"additionalProperties", false}};
  return {.functions = {{.name = "get_weather", .parameters = weather}, {.name = "stop"}},
          .required = required,
          .parallel = parallel};
}

TEST(Hermes, GrammarHasWhatTheParserReads) {
  const auto accepts = [](const CallGrammar& calls, const std::string& text) {
    return tool_testing::accepts("hermes", calls, text) &&
           tool_testing::accepts("hermes", calls, text, {"<tool_call>", "</tool_call>"});
  };
  const std::string one =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
  const std::string two = one + "\n<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
  EXPECT_TRUE(accepts(calls(true, true), one));
  EXPECT_TRUE(accepts(calls(true, true), two));
  EXPECT_FALSE(accepts(calls(true, false), two));
  EXPECT_FALSE(accepts(calls(true, true), "Hello"));
  EXPECT_TRUE(accepts(calls(false, true), "Hello"));
  EXPECT_TRUE(accepts(calls(false, true), "Hello " + two + " bye"));
  EXPECT_FALSE(accepts(calls(false, true), "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(
      accepts(calls(false, true), "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>"));
}

TEST(Hermes, AnswersOfTheGrammarAreParsed) {
  expect_round_trip("hermes");
  expect_round_trip("hermes", {.special = {"<tool_call>", "</tool_call>"}});
}

TEST(Hermes, WhatTheGrammarAllowsIsSound) {
  std::vector<std::string> texts;
  for (const Answer& answer : kAnswers) texts.push_back(answer.text);
  expect_sound("hermes", texts);
  expect_sound("hermes", texts, {"<tool_call>", "</tool_call>"});
}

TEST(Hermes, ArgumentsAreObjects) {
  const auto accepts = [](const Json& parameters, const std::string& arguments) {
    const CallGrammar calls{.functions = {{.name = "f", .parameters = parameters}}, .required = true};
    return tool_testing::accepts("hermes", calls,
                                 "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>");
  };
  EXPECT_TRUE(accepts(Json(), "{\"a\": 1}"));
  EXPECT_TRUE(accepts(Json::object(), "{\"a\": 1}"));
  EXPECT_FALSE(accepts(Json::object(), "1"));
  EXPECT_FALSE(accepts({{"type", {"object", "null"}}}, "null"));
  EXPECT_THROW(accepts({{"type", "string"}}, "\"\""), grammar::GrammarError);
}

TEST(Hermes, IsFoundInTemplates) {
  EXPECT_NE(find_tool_syntax("<tool_call>{{ call.arguments }}</tool_call>"), nullptr);
  EXPECT_EQ(find_tool_syntax("{{ messages }}"), nullptr);
}

}  // namespace
}  // namespace sluice::tool_testing::hermes_test
