// Calls in the syntax of Hermes: every split of an answer gives the same, and the grammar's answers are parsed.
#include <gtest/gtest.h>

#include <chrono>

#include "chat/tool_syntax.h"

namespace sluice {
namespace {

// Deltas put together: text, and per call its name and arguments.
struct Parsed {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

void collect(std::vector<Delta>& deltas, Parsed& into) {
  for (const Delta& delta : deltas) {
    if (const auto* d = std::get_if<TextDelta>(&delta)) into.text += d->text;
    if (const auto* d = std::get_if<ToolCallBegin>(&delta)) {
      ASSERT_EQ(static_cast<size_t>(d->index), into.calls.size());
      into.calls.emplace_back(d->name, "");
    }
    if (const auto* d = std::get_if<ToolCallArguments>(&delta))
      into.calls.at(static_cast<size_t>(d->index)).second += d->json;
  }
  deltas.clear();
}

Parsed parse(const std::vector<std::string>& pieces) {
  const auto parser = tool_syntax("hermes")->parser(nullptr);
  Parsed out;
  std::vector<Delta> deltas;
  for (const std::string& piece : pieces) {
    parser->push(piece, deltas);
    collect(deltas, out);
  }
  parser->finish(deltas);
  collect(deltas, out);
  return out;
}

const std::vector<std::pair<std::string, Parsed>> kAnswers = {
    {"Hello <b>world</b>\n", {"Hello <b>world</b>\n", {}}},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}]\\\"{\", \"b\": [1, {}]}}\n</tool_call>",
     {"", {{"f", "{\"a\": \"}]\\\"{\", \"b\": [1, {}]}"}}}},
    {"Let me see.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call>{\"name\": \"g\", "
     "\"arguments\": {\"x\": 1}}</tool_call>",
     {"Let me see.", {{"f", "{}"}, {"g", "{\"x\": 1}"}}}},
    {"<tool_call>{\"arguments\": {\"x\":1}, \"name\": \"g\"}</tool_call> done", {" done", {{"g", "{\"x\":1}"}}}},
    {"a <tool_call>no call</tool_call>b", {"a <tool_call>no callb", {}}},
    {"a <tool_call>{\"name\": 5}", {"a <tool_call>{\"name\": 5}", {}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut", {"", {{"f", "{\"a\": \"cut"}}}},
    {"<tool_cal", {"<tool_cal", {}}},
    {"<<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {"<", {{"f", "{}"}}}}};

TEST(Hermes, EverySplitGivesTheSame) {
  for (const auto& [text, expected] : kAnswers) {
    EXPECT_EQ(parse({text}), expected) << text;
    for (size_t i = 0; i <= text.size(); ++i)
      EXPECT_EQ(parse({text.substr(0, i), text.substr(i)}), expected) << text << i;
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(parse(bytes), expected) << text;
  }
}

TEST(Hermes, HostileAnswersTakeLinearTime) {
  for (const std::string& piece : {std::string("<"), std::string("<tool_call>"), std::string("{"),
                                   std::string("<tool_call>{\"name\": \"f\", \"arguments\": {"), std::string(" ")}) {
    std::vector<std::string> pieces(1'000'000 / piece.size(), piece);
    pieces.insert(pieces.begin(), "<tool_call>{\"name\": \"");
    const auto begin = std::chrono::steady_clock::now();
    parse(pieces);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << piece;
  }
}

std::shared_ptr<const grammar::Grammar> calls(bool required, bool parallel) {
  grammar::Budget budget;
  const Json weather = {{"type", "object"},
                        {"properties", {{"city", {{"type", "string"}}}}},
                        {"required", {"city"}},
                        {"additionalProperties", false}};
  const CallGrammar calls{.functions = {{.name = "get_weather", .parameters = weather}, {.name = "stop"}},
                          .required = required,
                          .parallel = parallel};
  return grammar::compile("tool_calls", tool_calls_grammar("hermes", calls), {.budget = budget});
}

bool accepts(const std::shared_ptr<const grammar::Grammar>& grammar, const std::string& text) {
  static const auto tokens =
      std::make_shared<const grammar::Vocabulary>(std::vector<std::string>(), grammar::Vocabulary::Options{});
  grammar::Matcher m(grammar, tokens);
  return m.accept(text) && m.complete();
}

TEST(Hermes, GrammarHasWhatTheParserReads) {
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
  EXPECT_EQ(parse({two}).calls.size(), 2u);
}

TEST(Hermes, IsFoundInTemplates) {
  EXPECT_NE(find_tool_syntax("<tool_call>{{ call.arguments }}</tool_call>"), nullptr);
  EXPECT_EQ(find_tool_syntax("{{ messages }}"), nullptr);
}

}  // namespace
}  // namespace sluice
