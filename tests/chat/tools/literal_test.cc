// Calls whose arguments are literals of Python or of Gemma's notation.
#include <gtest/gtest.h>

#include "base/json.h"
#include "chat/tools/json_pieces.h"
#include "chat/tools/literal_reader.h"
#include "chat/tools/testing.h"

namespace sluice::tool_testing::literal_test {
namespace {

// The JSON of a literal, read whole and byte by byte.
std::string json_of(const std::string& text) {
  LiteralReader whole(LiteralNotation{});
  std::string json, bytes;
  whole.read(text, json);
  whole.finish(json);
  LiteralReader reader(LiteralNotation{});
  for (const char c : text) reader.read({&c, 1}, bytes);
  reader.finish(bytes);
  EXPECT_EQ(json, bytes) << text;
  return json;
}

TEST(Literals, AreWrittenAsJson) {
  EXPECT_EQ(json_of("12"), "12");
  EXPECT_EQ(json_of("-1_000.50e+3"), "-1000.50e+3");
  EXPECT_EQ(json_of("+.5"), "0.5");
  EXPECT_EQ(json_of("5."), "5.0");
  EXPECT_EQ(json_of("007"), "7");
  EXPECT_EQ(json_of("True"), "true");
  EXPECT_EQ(json_of("None"), "null");
  EXPECT_EQ(json_of("name"), "\"name\"");
  EXPECT_EQ(json_of("1 + 2"), "\"1 + 2\"");
  EXPECT_EQ(json_of("'a\"b'"), "\"a\\\"b\"");
  EXPECT_EQ(json_of(R"('it\'s \\ \n \t \x41 \u00e9 \U0001F600 \101 \q \/')"),
            "\"it's \\\\ \\n \\t A \u00e9 \U0001F600 A \\\\q /\"");
  EXPECT_EQ(json_of(R"("\ud83d\ude00 \ud83d.")"), "\"\U0001F600 \uFFFD.\"");
  EXPECT_EQ(json_of("r'a\\n'"), "\"a\\\\n\"");
  EXPECT_EQ(json_of("[1, 'a', [None, ], (2, 3)]"), "[1, \"a\", [null], [2, 3]]");
  EXPECT_EQ(json_of("{'a': {\"b\": [True]}, 2: -1, c: 'd',}"), "{\"a\": {\"b\": [true]}, \"2\": -1, \"c\": \"d\"}");
  EXPECT_EQ(json_of("[]"), "[]");
  EXPECT_EQ(json_of("[f(1, 2), x]"), "[\"f(1, 2)\", \"x\"]");
  // Quotes that are not escaped.
  EXPECT_EQ(json_of("['it's', 'sed -n '1,9p' f']"), "[\"it's\", \"sed -n '1,9p' f\"]");
}

TEST(Literals, PythonicIsParsed) {
  expect_parsed("pythonic",
                {{"Hello [world]", {"Hello [world]", {}}},
                 {"[f(a=1, b=\"x, y)\"), g()]", {"", {{"f", "{\"a\": 1, \"b\": \"x, y)\"}"}, {"g", "{}"}}}},
                 {"\n[get-it.now(city='Zürich', where={'a': [-1.5, None]}, ok=True)]",
                  {"", {{"get-it.now", "{\"city\": \"Zürich\", \"where\": {\"a\": [-1.5, null]}, \"ok\": true}"}}}},
                 {"[f( a = 'x' , ) , g ( )]", {"", {{"f", "{\"a\": \"x\"}"}, {"g", "{}"}}}},
                 {"[link](http://x)", {"[link](http://x)", {}}},
                 {"[f(1, 2)]", {"[f(1, 2)]", {}}},
                 {"[1, 2]", {"[1, 2]", {}}},
                 {"[f(a=\"cut", {"", {{"f", "{\"a\": \"cut"}}}},
                 {"[f(a=12", {"", {{"f", "{\"a\": 12"}}}},
                 {"[f(a", {"[f(a", {}}}});
}

TEST(Literals, OthersAreParsed) {
  expect_parsed("llama4_pythonic",
                {{"<|python_start|>[f(a=1), g()]<|python_end|>", {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
                 {"[f(a=1)]", {"", {{"f", "{\"a\": 1}"}}}},
                 {"[f(a=1)]<|python_end|>", {"", {{"f", "{\"a\": 1}"}}}}});
  expect_parsed("olmo3",
                {{"Ok.\n<function_calls>\nf(a=1)\ng()\n</function_calls>", {"Ok.", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
                 {"<function_calls>f(a='<')</function_calls>", {"", {{"f", "{\"a\": \"<\"}"}}}}});
  expect_parsed("lfm2", {{"<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>Done.",
                          {"Done.", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}}});
}

TEST(Literals, GemmaIsParsed) {
  expect_parsed(
      "gemma4",
      {{"Ok.<|tool_call>call:f{city:<|\"|>New \"York\", {x}<|\"|>,n:-1.5,o:{a:[true,null],b:<|\"|><b><|\"|>}}"
        "<tool_call|><|tool_call>call:g{}<tool_call|>",
        {"Ok.",
         {{"f", "{\"city\": \"New \\\"York\\\", {x}\", \"n\": -1.5, \"o\": {\"a\": [true, null], \"b\": \"<b>\"}}"},
          {"g", "{}"}}}},
       {"<|tool_call>call:f{a:plain words,<|\"|>k 1<|\"|>:1}<tool_call|>",
        {"", {{"f", "{\"a\": \"plain words\", \"k 1\": 1}"}}}},
       {"<|tool_call>call:f{a:<|\"|>cut", {"", {{"f", "{\"a\": \"cut"}}}},
       {"<|tool_call>call:f(a)<tool_call|>", {"<|tool_call>call:f(a)<tool_call|>", {}}}});
  expect_parsed("functiongemma", {{"<start_function_call>call:f{a:<escape>x<escape>,b:2}<end_function_call>",
                                   {"", {{"f", "{\"a\": \"x\", \"b\": 2}"}}}}});
}

TEST(Literals, HostileAnswersTakeLinearTime) {
  expect_linear("pythonic", {"[f(a='", "[f(a=", "[f(a=["}, {"'", "[", "(", " ", "f(", "x", ",", "\\"});
  expect_parsed(
      "lfm2",
      {{"<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"parameters\": {}}]"
        "<|tool_call_end|>",
        {"", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
       {"<|tool_call_start|> {\"name\": \"g\", \"arguments\": {}}<|tool_call_end|>", {"", {{"g", "{}"}}}}});
  expect_linear("lfm2", {"<|tool_call_start|>"}, {"<|tool_call_start|>", "f(", "[", " "});
  expect_linear("gemma4", {"<|tool_call>call:f{a:<|\"|>", "<|tool_call>"}, {"<|\"|", "<", "{", " ", "call:"});
}

TEST(Literals, GrammarsWriteWhatTheParsersRead) {
  for (const char* syntax : {"pythonic", "llama4_pythonic", "olmo3", "lfm2"}) {
    expect_round_trip(syntax, {.special = {"<|tool_call_start|>", "<|python_start|>"}});
    expect_round_trip(syntax);
  }
  expect_round_trip("gemma4", {.special = {"<|tool_call>", "<tool_call|>", "<|\"|>"}});
  expect_round_trip("gemma4");
  expect_round_trip("functiongemma");
}

TEST(Literals, GrammarHonoursSchemas) {
  const auto allows = [](const char* syntax, const char* property, const std::string& text) {
    const Json schema = {{"type", "object"},
                         {"properties", {{"k", parse_json(property)}}},
                         {"required", {"k"}},
                         {"additionalProperties", false}};
    return accepts(syntax, {.functions = {{.name = "f", .parameters = schema}}, .required = true}, text);
  };
  EXPECT_TRUE(allows("pythonic", R"({"type": "boolean"})", "[f(k=True)]"));
  EXPECT_FALSE(allows("pythonic", R"({"type": "boolean"})", "[f(k=true)]"));
  EXPECT_FALSE(allows("pythonic", R"({"type": "boolean"})", "[f()]"));
  EXPECT_TRUE(allows("pythonic", R"({"type": "string", "maxLength": 2})", "[f(k=\"ab\")]"));
  EXPECT_FALSE(allows("pythonic", R"({"type": "string", "maxLength": 2})", "[f(k=\"abc\")]"));
  EXPECT_TRUE(
      allows("pythonic", R"({"type": "array", "items": {"type": ["boolean", "null"]}})", "[f(k=[True, None])]"));
  const auto gemma = [](const std::string& value) { return "<|tool_call>call:f{k:" + value + "}<tool_call|>"; };
  EXPECT_TRUE(allows("gemma4", R"({"enum": ["a", 1]})", gemma("<|\"|>a<|\"|>")));
  EXPECT_TRUE(allows("gemma4", R"({"enum": ["a", 1]})", gemma("1")));
  EXPECT_FALSE(allows("gemma4", R"({"enum": ["a", 1]})", gemma("<|\"|>b<|\"|>")));
  EXPECT_TRUE(allows("gemma4", R"({"type": "object", "required": ["x"]})", gemma("{x:<|\"|>y<|\"|>,z:[1,2]}")));
  EXPECT_FALSE(allows("gemma4", R"({"type": "object", "required": ["x"]})", gemma("{}")));
}

TEST(Literals, TemplateOfGemma4) {
  expect_template_calls("gemma4",
                        {.file = "google-gemma-4-31B-it.jinja", .begin = "<|turn>model\n", .end = "<|tool_response>"});
}

TEST(Literals, AreFoundInTemplates) {
  EXPECT_EQ(find_tool_syntax("{{ \"List of tools: [\" }}"), tool_syntax("lfm2"));
  EXPECT_EQ(find_tool_syntax("<start_function_call>call:{{ name }}"), tool_syntax("functiongemma"));
  EXPECT_EQ(find_tool_syntax("[func_name1(params_name1=params_value1)] <|python_start|>"),
            tool_syntax("llama4_pythonic"));
}

}  // namespace
}  // namespace sluice::tool_testing::literal_test
