// JSON schemas against the instances of published suites.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "base/json.h"
#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::json_schema_test {
namespace {

struct Verdict {
  int accepted_wrongly = 0, refused_wrongly = 0;
  std::string first{};  // wrong instance
};

Verdict judge(const std::shared_ptr<const Grammar>& grammar, const Json& tests) {
  static const auto tokens = vocabulary_of({"a"});
  Verdict v;
  for (const Json& test : tests) {
    for (const int indent : {-1, 2}) {
      const std::string text = test["data"].dump(indent);
      Matcher m(grammar, tokens);
      const bool accepted = m.accept(text) && m.complete();
      if (accepted == test["valid"].get<bool>()) continue;
      ++(accepted ? v.accepted_wrongly : v.refused_wrongly);
      if (v.first.empty()) v.first = text;
    }
  }
  return v;
}

struct Suite {
  int schemas = 0, right = 0, accepted_wrongly = 0, refused_wrongly = 0, unsupported = 0;
  double slowest = 0;  // seconds
};

// Prints what goes wrong when SLUICE_VERBOSE is set.
Suite run(const std::string& file) {
  Suite suite;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const Json row = Json::parse(line);
    ++suite.schemas;
    const auto report = [&](const std::string& what) {
      if (std::getenv("SLUICE_VERBOSE") != nullptr) std::cerr << row["name"].get<std::string>() << ": " << what << "\n";
    };
    const auto begin = std::chrono::steady_clock::now();
    std::shared_ptr<const Grammar> grammar;
    try {
      Budget budget;
      grammar = compile("json_schema", row["schema"].dump(), {.budget = budget});
    } catch (const GrammarError& e) {
      const bool none_valid = std::none_of(row["tests"].begin(), row["tests"].end(),
                                           [](const Json& test) { return test["valid"].get<bool>(); });
      if (std::string(e.what()) == "no text satisfies the grammar" && none_valid) {
        ++suite.right;
      } else {
        ++suite.unsupported;
        report(e.what());
      }
      continue;
    }
    suite.slowest =
        std::max(suite.slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    const Verdict v = judge(grammar, row["tests"]);
    suite.right += v.first.empty() ? 1 : 0;
    suite.accepted_wrongly += v.accepted_wrongly > 0 ? 1 : 0;
    suite.refused_wrongly += v.refused_wrongly > 0 ? 1 : 0;
    if (!v.first.empty())
      report((v.accepted_wrongly > 0 ? "accepts " : "refuses ") + v.first.substr(0, 200) + " of " +
             row["schema"].dump().substr(0, 300));
  }
  std::cout << file << ": " << suite.schemas << " schemas, " << suite.right << " right, " << suite.accepted_wrongly
            << " accepted wrongly, " << suite.refused_wrongly << " refused wrongly, " << suite.unsupported
            << " not supported, slowest " << suite.slowest * 1000 << " ms\n";
  return suite;
}

const char* goldens() {
  const char* folder = std::getenv("SLUICE_GOLDENS");
  if (folder == nullptr) std::cout << "skipped: SLUICE_GOLDENS does not name the folder of the goldens\n";
  return folder;
}

TEST(JsonSchema, IsRightOnMaskBench) {
  const char* folder = goldens();
  if (folder == nullptr) GTEST_SKIP();
  const Suite suite = run(std::string(folder) + "/json_schema/maskbench.jsonl");
  EXPECT_EQ(suite.accepted_wrongly, 0);
  EXPECT_GE(suite.right, suite.schemas * 98 / 100);
}

TEST(JsonSchema, HasNoWrongVerdictInTheOfficialSuite) {
  const char* folder = goldens();
  if (folder == nullptr) GTEST_SKIP();
  const Suite suite = run(std::string(folder) + "/json_schema/draft2020-12.jsonl");
  EXPECT_EQ(suite.accepted_wrongly, 0);
  EXPECT_EQ(suite.refused_wrongly, 0);
  EXPECT_GE(suite.right, suite.schemas * 85 / 100);
}

bool is_valid(const Json& schema, const Json& value) {
  Budget budget;
  Matcher m(compile("json_schema", schema.dump(), {.budget = budget}), vocabulary_of({"a"}));
  return m.accept(value.dump()) && m.complete();
}

TEST(JsonSchema, RefusesUnknownDialects) {
  EXPECT_TRUE(is_valid({{"$schema", "http://json-schema.org/draft-07/schema#"}}, 1));
  try {
    is_valid({{"$schema", "https://example.com/dialect"}, {"type", "integer"}}, 1);
    FAIL() << "accepted";
  } catch (const GrammarError& e) {
    EXPECT_EQ(std::string_view(e.what()).find("schema.$schema: unknown dialect 'https://example.com/dialect'"), 0);
  }
}

TEST(JsonSchema, ChoicesMayContainThemselves) {
  const Json tree = Json::parse(R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"oneOf": [{"type": "null"},
      {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["a"]},
      {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["a", "b"]}]}}})");
  EXPECT_TRUE(is_valid(tree, {{"a", {{"a", nullptr}}}}));
  EXPECT_FALSE(is_valid(tree, {{"a", {{"a", 1}}}}));
  EXPECT_FALSE(is_valid(tree, {{"a", {{"a", nullptr}, {"b", 1}}}})) << "both objects match";
  const Json list = Json::parse(R"({"$ref": "#/$defs/list", "$defs": {"list": {"oneOf": [{"type": "null"},
      {"type": "array", "items": [{"$ref": "#/$defs/list"}, {"type": "number"}], "minItems": 1, "maxItems": 2},
      {"type": "array", "items": [{"$ref": "#/$defs/list"}], "minItems": 2}]}}})");
  EXPECT_TRUE(is_valid(list, Json::parse("[[null]]")));
  EXPECT_TRUE(is_valid(list, Json::parse("[null, [null], null]")));
  EXPECT_FALSE(is_valid(list, Json::parse("[null, 1]"))) << "both arrays match";
}

// Each definition's oneOf asks for the next one's normal form.
TEST(JsonSchema, LongChainsOfChoicesNeedLittleStack) {
  Json definitions = Json::object();
  for (int i = 0; i < 2000; ++i) {
    const Json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    const Json object = {{"type", "object"}, {"properties", {{"a", next}}}, {"required", {"a"}}};
    Json other = object;
    other["required"] = {"a", "b"};
    definitions[std::to_string(i)] = {{"oneOf", {object, other}}};
  }
  definitions["2000"] = {{"type", "null"}};
  try {
    EXPECT_FALSE(is_valid({{"$ref", "#/$defs/0"}, {"$defs", definitions}}, {{"a", nullptr}}));
  } catch (const GrammarError&) {  // a limit of steps or memory
  }
}

// What "not" says of members with other names than the listed ones: one of them is wrong.
TEST(JsonSchema, SomeMemberMayBeAskedFor) {
  const Json open = Json::parse(R"({"type": "object", "properties": {"a": {}}, "not": {"properties": {"a": {}},
      "additionalProperties": {"type": "string"}}})");
  EXPECT_FALSE(is_valid(open, Json::object()));
  EXPECT_FALSE(is_valid(open, {{"a", 1}, {"b", "x"}}));
  EXPECT_TRUE(is_valid(open, {{"b", "x"}, {"c", 1}}));
  EXPECT_TRUE(is_valid(open, {{"c", 1}, {"b", "x"}, {"d", "y"}, {"e", 2}}));
  const Json patterns = Json::parse(R"({"type": "object", "properties": {"xa": {"type": "integer"}},
      "not": {"patternProperties": {"^x": {"type": "integer"}}}})");
  EXPECT_FALSE(is_valid(patterns, {{"xa", 1}, {"xb", 2}, {"y", "z"}}));
  EXPECT_TRUE(is_valid(patterns, {{"xa", 1}, {"xb", "2"}}));
  const Json names = Json::parse(R"({"type": "object", "maxProperties": 2, "required": ["a"],
      "not": {"propertyNames": {"pattern": "^[ab]"}}})");
  EXPECT_FALSE(is_valid(names, {{"a", 1}, {"b", 1}}));
  EXPECT_TRUE(is_valid(names, {{"a", 1}, {"c", 1}}));
  EXPECT_FALSE(is_valid(names, {{"a", 1}, {"c", 1}, {"d", 1}}));
  const Json closed = Json::parse(R"({"oneOf": [
      {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false},
      {"type": "object", "properties": {"a": {}, "c": {}}, "additionalProperties": false}]})");
  EXPECT_FALSE(is_valid(closed, {{"a", 1}})) << "both match";
  EXPECT_TRUE(is_valid(closed, {{"a", 1}, {"b", 1}}));
  EXPECT_TRUE(is_valid(closed, {{"c", 1}}));
  EXPECT_FALSE(is_valid(closed, {{"b", 1}, {"c", 1}}));
}

TEST(JsonSchema, OneMemberCanBeAllThatAreAskedFor) {
  const Json two = Json::parse(R"({"type": "object", "maxProperties": 1, "allOf": [
      {"not": {"propertyNames": {"not": {"pattern": "a"}}}}, {"not": {"additionalProperties": {"type": "null"}}}]})");
  EXPECT_TRUE(is_valid(two, {{"ba", 1}}));
  EXPECT_FALSE(is_valid(two, {{"ba", nullptr}}));
  EXPECT_FALSE(is_valid(two, {{"b", 1}}));
}

// The bound is a counter beside the automaton, as their product would be too large.
TEST(JsonSchema, LongStringsWithAPatternHaveABound) {
  const auto text = [](int words, int letters) {
    std::string out(static_cast<size_t>(letters), 'w');
    for (int i = 1; i < words; ++i) out += "  " + std::string(static_cast<size_t>(letters), 'w');
    return out;
  };
  const Json words = Json::parse(R"({"type": "string", "maxLength": 300, "pattern": "^(?:\\S+\\s+){0,29}\\S+$"})");
  EXPECT_TRUE(is_valid(words, text(30, 8))) << "298 characters";
  EXPECT_FALSE(is_valid(words, text(31, 1)));
  EXPECT_TRUE(is_valid(words, text(1, 300)));
  EXPECT_FALSE(is_valid(words, text(1, 301)));
  EXPECT_FALSE(is_valid(words, text(30, 9)));
  EXPECT_FALSE(is_valid(words, "a "));
  const Json email = Json::parse(R"({"type": "string", "format": "email", "minLength": 7, "maxLength": 1024})");
  EXPECT_TRUE(is_valid(email, std::string(1018, 'a') + "@bc.de"));
  EXPECT_FALSE(is_valid(email, std::string(1019, 'a') + "@bc.de"));
  EXPECT_FALSE(is_valid(email, "a@b.de"));
  const Json wide = Json::parse(R"({"type": "string", "maxLength": 32767, "pattern": "^[\u00e4\ud83d\ude00]*$"})");
  std::string smiles;
  for (int i = 0; i < 32767; ++i) smiles += i % 2 == 0 ? "\xF0\x9F\x98\x80" : "\xC3\xA4";
  EXPECT_TRUE(is_valid(wide, smiles)) << "characters are counted, not bytes";
  EXPECT_FALSE(is_valid(wide, smiles + "\xC3\xA4"));
}

// A text that is allowed so far can be completed within the bound.
TEST(JsonSchema, BoundedStringsHaveNoDeadEnds) {
  Budget budget;
  const auto grammar = compile("json_schema", R"({"type": "string", "maxLength": 2000, "pattern": "^a*(b{40})?c$"})",
                               {.budget = budget});
  Matcher m(grammar, vocabulary_of({"a"}));
  ASSERT_TRUE(m.accept("\"" + std::string(1960, 'a')));
  Matcher b = m;
  EXPECT_FALSE(b.accept("b")) << "no room for 40 of them and the c";
  Matcher c = m;
  EXPECT_TRUE(c.accept("c\"") && c.complete());
  EXPECT_TRUE(m.accept(std::string(39, 'a')));
  EXPECT_FALSE(m.accept("a"));
}

TEST(JsonSchema, FormatsOfExpressionsAndTemplates) {
  const Json regex = {{"type", "string"}, {"format", "regex"}};
  for (const char* text : {"^[a-zA-Z0-9_]{3,16}$", "(?:x|y)?(a(b(c)))*", "[^\\]]+", "[\\w.-]+@[\\w-]+\\.[a-z]{2,}", "",
                           "(?<year>\\d{4})", "\\p{L}+?", "x{10,15}"}) {
    EXPECT_TRUE(is_valid(regex, text)) << text;
  }
  for (const char* text : {"*", "\\", "[", "(", "a)", "a**", "[z-a]", "x{3,1}", "x{15,10}", "(?", "a{2}{3}"}) {
    EXPECT_FALSE(is_valid(regex, text)) << text;
  }
  const Json uri = {{"type", "string"}, {"format", "uri-template"}};
  for (const char* text : {"http://example.com/{id}", "{+path}/here{?x,y*}", "a/{var:3}"}) {
    EXPECT_TRUE(is_valid(uri, text)) << text;
  }
  for (const char* text : {"http://example.com/{", "{}", "a b", "%zz"}) EXPECT_FALSE(is_valid(uri, text)) << text;
}

TEST(JsonSchema, IntegersOfDraft4HaveNoFraction) {
  const Json old = {{"$schema", "http://json-schema.org/draft-04/schema#"}, {"type", "integer"}};
  EXPECT_TRUE(is_valid(old, 12));
  EXPECT_FALSE(is_valid(old, 12.0));
  EXPECT_TRUE(is_valid({{"type", "integer"}}, 12.0));
}

TEST(JsonSchema, CountsWhatIsEvaluatedByAllThatMatches) {
  const Json any = Json::parse(R"({"anyOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]},
      {"properties": {"b": {"type": "null"}}, "required": ["b"]}], "unevaluatedProperties": false})");
  EXPECT_TRUE(is_valid(any, {{"a", nullptr}}));
  EXPECT_TRUE(is_valid(any, {{"a", nullptr}, {"b", nullptr}}));
  EXPECT_FALSE(is_valid(any, {{"a", nullptr}, {"b", 1}}));
  EXPECT_FALSE(is_valid(any, {{"a", nullptr}, {"c", 1}}));
  const Json twice_not = Json::parse(R"({"not": {"not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
      "unevaluatedProperties": {"type": "string"}})");
  EXPECT_FALSE(is_valid(twice_not, {{"a", 1}}));
  const Json items =
      Json::parse(R"({"allOf": [{"prefixItems": [{"type": "null"}]}], "unevaluatedItems": {"const": 2}})");
  EXPECT_TRUE(is_valid(items, {nullptr, 2, 2}));
  EXPECT_FALSE(is_valid(items, {nullptr, 2, 3}));
}

TEST(JsonSchema, ItemsOfAFiniteSetDiffer) {
  const auto check = [](const char* schema, std::vector<std::string> right, std::vector<std::string> wrong) {
    Budget budget;
    const auto grammar = compile("json_schema", schema, {.budget = budget});
    const auto accepts = [&](const std::string& text) {
      Matcher m(grammar, vocabulary_of({"a"}));
      return m.accept(text) && m.complete();
    };
    for (const std::string& text : right) EXPECT_TRUE(accepts(text)) << schema << ": " << text;
    for (const std::string& text : wrong) EXPECT_FALSE(accepts(text)) << schema << ": " << text;
  };
  check(R"({"type": "array", "items": {"enum": ["a", "ab", "b"]}, "uniqueItems": true})",
        {"[]", R"(["a"])", R"(["b", "ab", "a"])"}, {R"(["a", "a"])", R"(["a", "\u0061"])", R"(["a", "b", "ab", "a"])"});
  check(R"({"type": "array", "items": {"enum": [1, 10, 1.5, true, null, "1"]}, "uniqueItems": true, "minItems": 2})",
        {"[1, 10]", "[10, 1, 1.5, true, null, \"1\"]", "[1.0, true]", "[1, null, 1.5]"},
        {"[1]", "[1, 1]", "[1, 1.0]", "[10, 1, 10]", "[1e1, 10]", "[true, true]", "[1,"});
  check(R"({"type": "array", "items": {"type": "integer", "minimum": -1, "maximum": 2}, "uniqueItems": true,
            "maxItems": 3})",
        {"[0, -1, 2]", "[2]"}, {"[0, -0]", "[0, 1, 2, -1]", "[3]", "[1, 2, 1]"});
  check(R"({"type": "array", "items": {"type": "boolean"}, "uniqueItems": true, "minItems": 2})",
        {"[true, false]", "[false, true]"}, {"[true]", "[true, true]", "[true, false, true]"});
  check(R"({"properties": {"x": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": true, "minItems": 2}}})",
        {"{}", "1"}, {R"({"x": ["a"]})", R"({"x": ["a", "a"]})"});
}

TEST(JsonSchema, SeveralContainsOfAnArray) {
  const Json schema = Json::parse(R"({"type": "array", "allOf": [
      {"contains": {"type": "string"}, "minContains": 2},
      {"contains": {"const": "a"}, "maxContains": 1},
      {"contains": {"type": "integer"}}], "maxItems": 5})");
  for (const Json& right : {Json{"a", "b", 1}, Json{1, "b", "a"}, Json{"a", nullptr, 2, "c", "d"}}) {
    EXPECT_TRUE(is_valid(schema, right)) << right;
  }
  for (const Json& wrong :
       {Json{"a", 1}, Json{"a", "a", 1}, Json{"a", "b"}, Json{"b", "c", 1}, Json{"a", "b", "c", "d", "e", 1}}) {
    EXPECT_FALSE(is_valid(schema, wrong)) << wrong;
  }
}

TEST(JsonSchema, ItemsThatDifferAreRefusedOfEndlessSets) {
  for (const char* items : {R"({"type": "string"})", R"({"type": "integer"})", R"({"enum": [[1], [2]]})",
                            R"({"type": "integer", "minimum": 0, "maximum": 256})"}) {
    Budget budget;
    const Json schema = {{"type", "array"}, {"items", Json::parse(items)}, {"uniqueItems", true}};
    EXPECT_THAT([&] { compile("json_schema", schema.dump(), {.budget = budget}); },
                testing::ThrowsMessage<GrammarError>(testing::HasSubstr("uniqueItems: is supported only for")))
        << items;
  }
}

}  // namespace
}  // namespace sluice::grammar::json_schema_test
