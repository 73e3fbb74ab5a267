// JSON schemas against the instances of published suites.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "base/json.h"
#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar {
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
  // A schema whose own dialect, which lies elsewhere, gives its keywords no meaning.
  EXPECT_LE(suite.refused_wrongly, 1);
  EXPECT_GE(suite.right, suite.schemas * 85 / 100);
}

bool is_valid(const Json& schema, const Json& value) {
  Budget budget;
  Matcher m(compile("json_schema", schema.dump(), {.budget = budget}), vocabulary_of({"a"}));
  return m.accept(value.dump()) && m.complete();
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

}  // namespace
}  // namespace sluice::grammar
