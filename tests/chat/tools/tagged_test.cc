// Calls with parameters in tags.
#include <gtest/gtest.h>

#include <chrono>

#include "chat/tools/argument_types.h"
#include "chat/tools/testing.h"
#include "grammar/limits.h"

namespace sluice::tool_testing::tagged_test {
namespace {

ToolFunctions functions() {
  const Json parameters = parse_json(R"({
    "$defs": {"unit": {"enum": ["C", "F"]}, "day": {"type": "integer"}},
    "properties": {
      "city": {"type": "string"},
      "days": {"$ref": "#/$defs/day"},
      "share": {"type": "number"},
      "now": {"type": "boolean"},
      "unit": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]},
      "list": {"type": "array"},
      "map": {"type": ["object", "null"]},
      "either": {"type": ["string", "integer"]},
      "any": {}}})");
  return {{.name = "f", .parameters = parameters}, {.name = "g"}};
}

TEST(ArgumentTypes, ComeFromSchemas) {
  const Json parameters = functions()[0].parameters;
  EXPECT_EQ(argument_types(parameters, "city"), kStringType);
  EXPECT_EQ(argument_types(parameters, "days"), kIntegerType);
  EXPECT_EQ(argument_types(parameters, "share"), kIntegerType | kFractionType);
  EXPECT_EQ(argument_types(parameters, "unit"), kStringType | kNullType);
  EXPECT_EQ(argument_types(parameters, "any"), kAnyType);
  EXPECT_EQ(argument_types(parameters, "other"), kAnyType);
  EXPECT_EQ(argument_types(Json(), "x"), kAnyType);
  EXPECT_EQ(argument_types(parse_json(R"({"additionalProperties": {"type": "array"}})"), "x"), kArrayType);
  EXPECT_EQ(argument_types(parse_json(R"({"allOf": [{"properties": {"x": {"const": true}}}]})"), "x"), kBooleanType);
  // A reference that leads to itself says nothing.
  EXPECT_EQ(argument_types(parse_json(R"({"properties": {"x": {"$ref": "#/properties/x"}}})"), "x"), kAnyType);
}

TEST(ArgumentTypes, AreFoundInBoundedTime) {
  Json schema = {{"anyOf", Json::array()}};
  for (int i = 0; i < 20; ++i) schema["anyOf"].push_back({{"$ref", "#"}});
  schema["properties"] = {{"x", {{"$ref", "#"}}}};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(argument_types(schema, "x"), kAnyType);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(ArgumentTypes, DecideWhatATextMeans) {
  EXPECT_EQ(argument_json("5", kStringType), "\"5\"");
  EXPECT_EQ(argument_json(" 5\n", kIntegerType), "5");
  EXPECT_EQ(argument_json("5.5", kIntegerType), "\"5.5\"");
  EXPECT_EQ(argument_json("5.0", kIntegerType), "5.0");
  EXPECT_EQ(argument_json("five", kIntegerType), "\"five\"");
  EXPECT_EQ(argument_json("True", kBooleanType), "true");
  EXPECT_EQ(argument_json("false", kBooleanType), "false");
  EXPECT_EQ(argument_json("None", kArrayType), "null");
  EXPECT_EQ(argument_json("['a', True]", kArrayType), "[\"a\", true]");
  EXPECT_EQ(argument_json("{'a': None}", kObjectType), "{\"a\": null}");
  EXPECT_EQ(argument_json("[1, 2", kArrayType), "\"[1, 2\"");
  EXPECT_EQ(argument_json("null", kStringType | kNullType), "null");
  EXPECT_EQ(argument_json("\"x\"", kStringType | kNullType), R"("\"x\"")");
  EXPECT_EQ(argument_json("12", kStringType | kNullType), "\"12\"");
  EXPECT_EQ(argument_json("12", kStringType | kIntegerType), "12");
  EXPECT_EQ(argument_json("\"x\"", kAnyType), "\"x\"");
  EXPECT_EQ(argument_json("007", kAnyType), "\"007\"");
  EXPECT_EQ(argument_json("007", kIntegerType), "7");
  EXPECT_EQ(argument_json("x", kAnyType), "\"x\"");
  EXPECT_EQ(argument_json("", kIntegerType), "\"\"");
  EXPECT_EQ(argument_json("\"123\"", kIntegerType), "123");
  EXPECT_EQ(argument_json("\"x\"", kIntegerType), "\"x\"");
  // No literals of Python.
  EXPECT_EQ(argument_json("{1, 2, 3}", kObjectType), "\"{1, 2, 3}\"");
  EXPECT_EQ(argument_json("{{ name }}", kAnyType), "\"{{ name }}\"");
  EXPECT_EQ(argument_json("{color: red; width: 3px}", kAnyType), "\"{color: red; width: 3px}\"");
  EXPECT_EQ(argument_json("[a, b]", kAnyType), "\"[a, b]\"");
  EXPECT_EQ(argument_json("{1: 'a', 'b': (2, None)}", kObjectType), "{\"1\": \"a\", \"b\": [2, null]}");
}

TEST(Tagged, Qwen3CoderIsParsed) {
  expect_parsed(
      "qwen3_coder",
      {{"Hello <b>", {"Hello <b>", {}}},
       {"Let me see.\n<tool_call>\n<function=f>\n<parameter=city>\nZürich \"so\"\n\nhere\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        {"Let me see.", {{"f", "{\"city\": \"Zürich \\\"so\\\"\\n\\nhere\", \"days\": 3}"}}}},
       {"<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call><function=f><parameter=now>True</parameter>"
        "<parameter=list>[1, {\"a\": \"</b>\"}]</parameter></function></tool_call>",
        {"", {{"g", "{}"}, {"f", "{\"now\": true, \"list\": [1, {\"a\": \"</b>\"}]}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=unit>\nnull\n</parameter>\n<parameter=city>\n\n</parameter>\n"
        "<parameter=map>\n{}\n</parameter>\n</function>\n</tool_call>",
        {"", {{"f", "{\"unit\": null, \"city\": \"\", \"map\": {}}"}}}},
       // An unknown function, and a parameter that is not in the schema.
       {"<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        {"", {{"other", "{\"a\": 1}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=b>\nx y\n</parameter>\n</function>\n</tool_call>",
        {"", {{"f", "{\"b\": \"x y\"}"}}}},
       // Ends that are missing, and answers that are cut off.
       {"<tool_call>\n<function=g>\n</function>", {"", {{"g", "{}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=city>\nPar", {"", {{"f", "{\"city\": \"Par"}}}},
       {"<tool_call>\n<function=f>\n<parameter=days>\n3", {"", {{"f", "{\"days\": \n3"}}}},
       {"<tool_call>\n<function=f>\n<parameter=ci", {"", {{"f", "{\"ci"}}}},
       // Marks that are missing: those of a name, of values, and those around a call.
       {"<tool_call><function=g\n</function></tool_call>", {"", {{"g", "{}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=city>\nA\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        {"", {{"f", "{\"city\": \"A\", \"days\": 3}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=days>\n3\n<parameter=city>\nA\r\n</function>\n</tool_call> b",
        {" b", {{"f", "{\"days\": 3, \"city\": \"A\"}"}}}},
       {"<tool_call>\n<function=f>\n<parameter=city>\nA\n</function>", {"", {{"f", "{\"city\": \"A\"}"}}}},
       {"a\n<function=f>\n<parameter=city>\nA\n</parameter>\n</function>\n</tool_call>\n<function=g>\n</function>",
        {"a", {{"f", "{\"city\": \"A\"}"}, {"g", "{}"}}}},
       // These marks belong to the values.
       {"<tool_call>\n<function=f>\n<parameter=city>\nA\n<parameter=other>\n<parameter=city>\n</function>\nB\n"
        "</parameter>\n</function>\n</tool_call>",
        {"", {{"f", "{\"city\": \"A\\n<parameter=other>\\n<parameter=city>\\n</function>\\nB\"}"}}}},
       // What is no call.
       {"a <function=h>\n</function>", {"a <function=h>\n</function>", {}}},
       {"a <tool_call>\n<function=f b", {"a <tool_call>\n<function=f b", {}}},
       {"a <tool_call>{\"name\": \"f\"}</tool_call>", {"a <tool_call>{\"name\": \"f\"}</tool_call>", {}}}},
      functions());
}

TEST(Tagged, OthersAreParsed) {
  const std::vector<Call> two = {{"f", "{\"city\": \"a\\nb\", \"days\": 3}"}, {"g", "{}"}};
  expect_parsed(
      "glm45",
      {{"<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
        {"", two}},
       {"<tool_call>f<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>", {"", {{"f", "{\"city\": \"x\"}"}}}},
       {"<tool_call>g", {"", {{"g", "{}"}}}},
       // Keys without values.
       {"<tool_call>f\n<arg_key>city</arg_key></tool_call><tool_call>g\n</tool_call>",
        {"", {{"f", "{}"}, {"g", "{}"}}}},
       {"<tool_call>f\n<arg_key>city</arg_key><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        {"", {{"f", "{\"days\": 3}"}}}},
       {"<tool_call>\n</tool_call>", {"<tool_call>\n</tool_call>", {}}}},
      functions());
  expect_parsed("glm47",
                {{"Hm.<tool_call>f<arg_key>city</arg_key><arg_value>a\nb</arg_value><arg_key>days</arg_key>"
                  "<arg_value>3</arg_value></tool_call><tool_call>g</tool_call>",
                  {"Hm.", two}}},
                functions());
  expect_parsed("minimax_m2",
                {{"<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">a\nb</parameter>\n"
                  "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n"
                  "</minimax:tool_call>",
                  {"", two}}},
                functions());
  expect_parsed("minimax_m2",
                {{"<minimax:tool_call>\n<invoke name=\"f\n</invoke>", {"", {{"f", "{}"}}}},
                 {"<minimax:tool_call>\n<invoke name=\"f<", {"<", {{"f", "{}"}}}}},
                functions());
  expect_parsed("dots",
                {{"<dots_function_call>\n<invoke name=\"f\">\n<parameter name=\"city\">a\nb</parameter>\n"
                  "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n"
                  "</dots_function_call>",
                  {"", two}}},
                functions());
  expect_parsed("mimo",
                {{"<tool_call>\n<function=f>\n<parameter=city>\na\n\n</parameter>\n<parameter=days>3</parameter>\n"
                  "</function>\n</tool_call>",
                  {"", {{"f", "{\"city\": \"\\na\\n\\n\", \"days\": 3}"}}}}},
                functions());
  expect_parsed("hy_v3",
                {{"Hm.<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n"
                  "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g<tool_sep>\n"
                  "</tool_call>\n</tool_calls>",
                  {"Hm.", two}},
                 {"<tool_calls><tool_call>g<tool_sep></tool_call></tool_calls>", {"", {{"g", "{}"}}}},
                 {"<tool_calls><tool_call>g<tool", {"", {{"g", "{}"}}}}},
                functions());
  expect_parsed("seed_oss",
                {{"<seed:tool_call>\n<function=f>\n<parameter=city>a\nb</parameter>\n<parameter=days>3</parameter>\n"
                  "</function>\n</seed:tool_call>\n<seed:tool_call><function=g></function></seed:tool_call>",
                  {"", two}},
                 {"<seed:tool_call>\n<function=f>\n<parameter=city>\na\n</parameter>\n</function>\n</seed:tool_call>",
                  {"", {{"f", "{\"city\": \"a\"}"}}}}},
                functions());
  expect_parsed("step3",
                {{"<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">"
                  "<steptml:parameter name=\"city\">a\nb</steptml:parameter><steptml:parameter name=\"days\">3"
                  "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_call_begin｜>function<｜tool_sep｜>"
                  "<steptml:invoke name=\"g\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
                  {"", two}}},
                functions());
}

TEST(Tagged, DsmlSaysWhichValuesAreStrings) {
  const std::string begin = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n",
                    end = "</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  const auto parameter = [](const std::string& key, const std::string& string, const std::string& value) {
    return "<｜DSML｜parameter name=\"" + key + "\" string=\"" + string + "\">" + value + "</｜DSML｜parameter>\n";
  };
  expect_parsed(
      "deepseek_v32",
      {{begin + parameter("either", "true", "12") + parameter("any", "false", "[1]") + end,
        {"", {{"f", "{\"either\": \"12\", \"any\": [1]}"}}}},
       {begin + parameter("either", "false", "12") + parameter("x", "true", "true") + end,
        {"", {{"f", "{\"either\": 12, \"x\": \"true\"}"}}}},
       {begin + "<｜DSML｜parameter name=\"city\">12</｜DSML｜parameter>" + end, {"", {{"f", "{\"city\": \">12\"}"}}}}},
      functions());
  // Without a section, without parameters, and with JSON in place of parameters.
  expect_parsed(
      "deepseek_v32",
      {{"Ok <｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>", {"Ok", {{"g", "{}"}}}},
       {"Ok <｜DSML｜invoke name=\"h\">\n</｜DSML｜invoke>", {"Ok <｜DSML｜invoke name=\"h\">\n</｜DSML｜invoke>", {}}},
       {"<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"g\"/>\n<｜DSML｜invoke name=\"f\"> {\"city\": \"}<\"} "
        "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n" +
            end,
        {"", {{"g", "{}"}, {"f", "{\"city\": \"}<\"}"}, {"g", "{}"}}}},
       {begin + "{\"city\": 1<｜", {"<｜", {{"f", "{\"city\": 1"}}}}},
      functions());
  // A value of a kind that the schema does not allow is of the other kind.
  expect_parsed("deepseek_v32",
                {{begin + parameter("days", "true", "3") + parameter("city", "false", "12") + end,
                  {"", {{"f", "{\"days\": 3, \"city\": \"12\"}"}}}}},
                functions());
  expect_parsed(
      "deepseek_v41",
      {{"<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"either\" string=\"true\">12"
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        {"", {{"f", "{\"either\": \"12\"}"}}}}},
      functions());
  expect_parsed("deepseek_v4",
                {{"Ok.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                  {"Ok.", {{"g", "{}"}}}}},
                functions());
}

// What is decided does not depend on how much text has come.
TEST(Tagged, LongNamesAndSpacesAreReadAlikeInPieces) {
  for (const size_t size : {490u, 500u, 510u, 520u, 530u}) {
    const std::string name(size, 'n');
    const Parsed glm = parse("glm45", {"<tool_call>" + name + "</tool_call>"});
    expect_parsed("glm45", {{"<tool_call>" + name + "</tool_call>", glm}});
    const std::string python = "[" + name + "(a=1)]";
    expect_parsed("pythonic", {{python, parse("pythonic", {python})}});
  }
  for (const size_t size : {60u, 70u}) {
    const std::string text =
        "<tool_call><function=f><parameter=city>A\n</function>" + std::string(size, ' ') + "</tool_call>";
    expect_parsed("qwen3_coder", {{text, parse("qwen3_coder", {text}, functions())}}, functions());
  }
  expect_parsed("glm45", {{"<tool_call>f\n{\"city\": \"}\"}\n```", {"\n```", {{"f", "{\"city\": \"}\"}"}}}}},
                functions());
  expect_parsed("glm45",
                {{"<tool_call>f<arg_key>city</arg_key> \t\nParis</arg_value></tool_call>",
                  {"", {{"f", "{\"city\": \"Paris\"}"}}}}},
                functions());
}

TEST(Tagged, StringsComeInPieces) {
  const auto parser = tool_syntax("qwen3_coder")->parser(std::make_shared<const ToolFunctions>(functions()));
  std::vector<Delta> deltas;
  parser->push("<tool_call>\n<function=f>\n<parameter=city>\nNew \"Yo", deltas);
  std::string json;
  for (const Delta& delta : deltas) {
    if (const auto* arguments = std::get_if<ToolCallArguments>(&delta)) json += arguments->json;
  }
  EXPECT_EQ(json, "{\"city\": \"New \\\"Yo");
}

TEST(Tagged, HostileAnswersTakeLinearTime) {
  expect_linear("qwen3_coder",
                {"<tool_call>",
                 "<tool_call><function=", "<tool_call><function=f><parameter=", "<tool_call><function=f><parameter=a>"},
                {"<", "<tool_call>", " ", "<parameter=a>", "</parameter", "\n", "x",
                 "\n<parameter=", "\n</function>\n ", "<function="});
  expect_linear("glm45", {"<tool_call>f<arg_key>a</arg_key>"}, {" ", "<arg_value>", "<", "<tool_call>f"});
  expect_linear("deepseek_v32", {"<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">"},
                {" ", "<｜DSML｜", "<｜DSML｜parameter name=\"a\" string=\"true\">"});
}

TEST(Tagged, GrammarsWriteWhatTheParsersRead) {
  for (const char* syntax : {"qwen3_coder", "mimo", "glm45", "glm47", "minimax_m2", "dots", "hy_v3", "seed_oss",
                             "step3", "deepseek_v32", "deepseek_v4", "deepseek_v41"}) {
    expect_round_trip(
        syntax, {.special = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
                 .rounds = 15});
    expect_round_trip(syntax, {.plain_strings = true, .rounds = 15});
  }
}

TEST(Tagged, GrammarsAllowNoTextThatIsReadAsACall) {
  expect_sound("qwen3_coder", {"<function=", "<function=f>", "<tool_call>", "</function>", "\n", "<parameter=a>", "x"});
}

std::string call(const std::string& key, const std::string& value) {
  return "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>\n</tool_call>";
}

bool allows(const std::string& property, const std::string& value) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"k", parse_json(property)}}},
                       {"required", {"k"}},
                       {"additionalProperties", false}};
  const CallGrammar calls{.functions = {{.name = "f", .parameters = schema}}, .required = true};
  return accepts("qwen3_coder", calls, call("k", value));
}

TEST(Tagged, GrammarHonoursSchemas) {
  EXPECT_TRUE(allows(R"({"type": "string"})", "any \"text\"\n</p>"));
  EXPECT_FALSE(allows(R"({"type": "string"})", "a</parameter>"));
  EXPECT_TRUE(allows(R"({"type": "string"})", "a<parameter=b>"));
  EXPECT_FALSE(allows(R"({"type": "string"})", "a\n<parameter=b>"));
  EXPECT_FALSE(allows(R"({"type": "string", "maxLength": 99})", "a\n</function>\n</tool_call>"));
  EXPECT_TRUE(allows(R"({"enum": ["a b", "c"]})", "a b"));
  EXPECT_FALSE(allows(R"({"enum": ["a b", "c"]})", "d"));
  EXPECT_TRUE(allows(R"({"type": "string", "pattern": "^[a-z]+$"})", "abc"));
  EXPECT_FALSE(allows(R"({"type": "string", "pattern": "^[a-z]+$"})", "ABC"));
  EXPECT_TRUE(allows(R"({"type": "string", "maxLength": 3})", "äöü"));
  EXPECT_FALSE(allows(R"({"type": "string", "maxLength": 3})", "abcd"));
  EXPECT_FALSE(allows(R"({"type": "string", "minLength": 1})", ""));
  EXPECT_TRUE(allows(R"({"type": "integer"})", "12"));
  EXPECT_FALSE(allows(R"({"type": "integer"})", "x"));
  EXPECT_TRUE(allows(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "null"));
  EXPECT_TRUE(allows(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "12 apples"));
  // A text that the parser takes for a number must be a number that the schema allows.
  EXPECT_FALSE(allows(R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 100}]})", "12"));
  EXPECT_TRUE(allows(R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 100}]})", "120"));
  EXPECT_TRUE(allows(R"({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 100}]})", "12 apples"));
  EXPECT_TRUE(allows(R"({"type": "array", "items": {"type": "string"}})", "[\"a\"]"));
  EXPECT_FALSE(allows(R"({"type": "array", "items": {"type": "string"}})", "[1]"));
  // Strings within JSON cannot hold the end of the value.
  EXPECT_FALSE(allows(R"({"type": "array", "items": {"type": "string"}})", "[\"</parameter>\"]"));
  EXPECT_TRUE(allows(R"({"type": "array", "items": {"type": "string"}})", "[\"<\\/parameter>\"]"));
}

TEST(Tagged, GrammarTakesParametersInAnyOrder) {
  const Json schema =
      parse_json(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                                     "required": ["a"], "additionalProperties": false})");
  const CallGrammar calls{.functions = {{.name = "f", .parameters = schema}}, .required = true, .parallel = false};
  const std::string a = "<parameter=a>\n1\n</parameter>\n", b = "<parameter=b>\nx\n</parameter>\n";
  const auto text = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  EXPECT_TRUE(accepts("qwen3_coder", calls, text(a)));
  EXPECT_TRUE(accepts("qwen3_coder", calls, text(a + b)));
  EXPECT_TRUE(accepts("qwen3_coder", calls, text(b + a)));
  EXPECT_FALSE(accepts("qwen3_coder", calls, text(b)));
  EXPECT_FALSE(accepts("qwen3_coder", calls, text(a + a)));
  EXPECT_FALSE(accepts("qwen3_coder", calls, text(a + "<parameter=c>\nx\n</parameter>\n")));
  EXPECT_FALSE(accepts("qwen3_coder", calls, text(a) + "\n" + text(a)));
}

TEST(Tagged, GrammarRefusesWhatItCannotWrite) {
  const auto error = [](const char* properties) -> std::string {
    const Json schema = {{"type", "object"}, {"properties", parse_json(properties)}};
    try {
      accepts("qwen3_coder", {.functions = {{.name = "f", .parameters = schema}}, .required = true}, "");
    } catch (const grammar::GrammarError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error(R"({"a>b": {}})").find("schema.properties.a>b"), std::string::npos) << error(R"({"a>b": {}})");
  EXPECT_NE(error(R"({"k": {"const": "</parameter>"}})").find("schema.properties.k"), std::string::npos);
  EXPECT_EQ(error(R"({"k": {"type": "string", "pattern": "x"}})"), "");
}

TEST(Tagged, GrammarsOfManyFunctionsStayWithinTheLimits) {
  ToolFunctions functions;
  for (int i = 0; i < 64; ++i) {
    Json properties = Json::object();
    for (int k = 0; k < 10; ++k) {
      const Json list = {{"type", "array"}, {"items", {{"type", "string"}}}};
      properties["key_" + std::to_string(k)] = k % 3 == 0   ? Json{{"type", "string"}}
                                               : k % 3 == 1 ? Json{{"anyOf", {list, {{"type", "null"}}}}}
                                                            : Json{{"type", {"integer", "string"}}};
    }
    functions.push_back({.name = "function_" + std::to_string(i),
                         .parameters = {{"type", "object"}, {"properties", properties}, {"required", {"key_0"}}}});
  }
  for (const char* syntax : {"qwen3_coder", "deepseek_v32", "pythonic", "gemma4", "openai"}) {
    EXPECT_FALSE(accepts(syntax, {.functions = functions, .required = true}, "x")) << syntax;
  }
}

TEST(Tagged, TemplatesWriteWhatTheParsersRead) {
  expect_template_calls("qwen3_coder",
                        {.file = "Qwen3-Coder.jinja", .begin = "<|im_start|>assistant", .end = "<|im_end|>"});
}
TEST(Tagged, TemplateOfNemotron) {
  expect_template_calls("qwen3_coder", {.file = "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja",
                                        .begin = "<|im_start|>assistant\n<think></think>",
                                        .end = "<|im_end|>"});
}
TEST(Tagged, TemplateOfStep35) {
  expect_template_calls("qwen3_coder",
                        {.file = "stepfun-ai-Step-3.5-Flash.jinja", .begin = "</think>\n", .end = "<|im_end|>"});
}
TEST(Tagged, TemplateOfGlm47) {
  expect_template_calls("glm47", {.file = "GLM-4.7-Flash.jinja", .begin = "</think>", .end = ""});
}
TEST(Tagged, TemplateOfDeepSeekV4) {
  expect_template_calls("deepseek_v4", {.file = "deepseek-ai-DeepSeek-V4.jinja",
                                        .begin = "</think>",
                                        .end = "<｜end▁of▁sentence｜>",
                                        .content = "Let me see."});
}

}  // namespace
}  // namespace sluice::tool_testing::tagged_test
