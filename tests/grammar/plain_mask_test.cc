// Masks of JSON and regular expressions token by token: tables of plain text, long tokens, and bytes that are forced.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::plain_mask_test {
namespace {

struct Case {
  const char* kind;
  const char* text;
};

const Case kCases[] = {
    {"json_schema", R"({"type": "string"})"},
    {"json_schema", R"({"type": "string", "minLength": 3, "maxLength": 30})"},
    {"json_schema", R"({"type": ["string", "null"], "maxLength": 200})"},
    {"json_schema", R"({"type": "string", "pattern": "^[^/#]+/[^/#]+$"})"},
    {"json_schema", R"({"type": "string", "pattern": "[0-9]{2}-a"})"},
    {"json_schema", R"({"type": "string", "pattern": "^[a-z0-9_]{1,40}$"})"},
    {"json_schema", R"({"type": "string", "pattern": "^[\\w ]*$"})"},
    {"json_schema", R"({"type": "string", "format": "uri"})"},
    {"json_schema", R"({"enum": ["abc", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "éa", ""]})"},
    {"json_schema", R"({"properties": {"aa": {"type": "integer"}, "ab0": {"maxLength": 2}, "é": {}}})"},
    {"json_schema", R"({"properties": {"aa": {}}, "patternProperties": {"^a/": {"type": "string"}, "0": false}})"},
    {"json_schema", R"({"type": "object", "propertyNames": {"pattern": "^[^a]{0,20}$"}, "maxProperties": 3})"},
    {"json_schema", R"({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 40})"},
    {"regex", "([a-c]|é){18,60}[^a]*"},
    {"regex", "[^漢]*漢[^/]{0,17}"},
    {"regex", "(a|0/)*#?[^\\n]{3}"},
    {"lark", R"(start: /[^a]+/ "a" /(.|\n){2,25}/)"},
};

// Tokens of pieces, some of them long, some with parts of characters, and all single bytes.
std::vector<std::string> random_tokens(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a",  "b", "c", "Z", "0", "7",  "-",  "_",  "/",    "#",    " ",        "é",
                                           "漢", "😀", "{", "}", ":", "\"", "\\", "\n", "\xc3", "\xa9", "\xf0\x9f", ","};
  std::vector<std::string> list = {"\": ", "\", \"", "\":\"", "\"}", "{\"", "\\n", "\\u00e9", "null", "true"};
  for (int byte = 0; byte < 256; ++byte) list.emplace_back(1, static_cast<char>(byte));
  for (int i = 0; i < 300; ++i) {
    std::string token;
    const size_t kinds = random() % 3 == 0 ? pieces.size() : 12;
    for (size_t n = 1 + random() % (random() % 4 == 0 ? 30 : 5); n > 0; --n) token += pieces[random() % kinds];
    list.push_back(token);
  }
  for (const size_t n : {15u, 16u, 17u, 18u, 30u, 64u, 130u}) list.emplace_back(n, 'a');
  return list;
}

std::shared_ptr<const Grammar> compiled(const Case& c) {
  Budget budget;
  return compile(c.kind, c.text, {.budget = budget});
}

TEST(Masks, OfPlainTextAreExact) {
  std::mt19937 random(17);
  const std::vector<std::string> list = random_tokens(random);
  const auto tokens = vocabulary_of(list);
  for (const Case& c : kCases) {
    const auto grammar = compiled(c);
    for (int text = 0; text < 12; ++text) {
      Matcher m(grammar, tokens);
      std::string before;
      for (int step = 0; step < 24; ++step) {
        const std::vector<uint32_t> mask = mask_of(m, *tokens);
        std::vector<TokenId> next;
        for (TokenId token = 0; token < static_cast<TokenId>(list.size()); ++token) {
          const bool accepted = Matcher(m).accept(token);
          ASSERT_EQ(allowed(mask, token), accepted)
              << c.text << " after '" << before << "': '" << list[static_cast<size_t>(token)] << "'";
          if (accepted) next.push_back(token);
        }
        if (next.empty()) break;
        const TokenId token = next[random() % next.size()];
        ASSERT_TRUE(m.accept(token));
        before += list[static_cast<size_t>(token)];
      }
    }
  }
}

// The bytes that the masks force one by one.
std::string forced_by_masks(Matcher m, const Vocabulary& vocabulary, size_t most) {
  std::string bytes;
  while (bytes.size() < most && !m.complete()) {
    const std::vector<uint32_t> mask = mask_of(m, vocabulary);
    int only = -1, count = 0;
    for (TokenId token = 0; token < 256; ++token) {
      if (!allowed(mask, token)) continue;
      only = token;
      ++count;
    }
    if (count != 1) break;
    bytes.push_back(static_cast<char>(only));
    EXPECT_TRUE(m.accept(static_cast<TokenId>(only)));
  }
  return bytes;
}

TEST(ForcedBytes, AreThoseThatMasksForce) {
  std::mt19937 random(23);
  std::vector<std::string> list;
  for (int byte = 0; byte < 256; ++byte) list.emplace_back(1, static_cast<char>(byte));
  const auto tokens = vocabulary_of(list);
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  cases.push_back(
      {"json_schema", R"({"type": "object", "properties": {"first": {"const": "constant"}, "second": {"enum":
      ["long name", "long way"]}}, "required": ["first", "second"], "additionalProperties": false})"});
  cases.push_back({"regex", "abc(def|dez)+"});
  cases.push_back({"gbnf", "root ::= \"<think>\" [a-z]* \"</think>\" (\"yes\" | \"yesterday\")"});
  size_t total = 0;
  for (const Case& c : cases) {
    const auto grammar = compiled(c);
    for (int text = 0; text < 6; ++text) {
      Matcher m(grammar, tokens);
      for (int step = 0; step < 40; ++step) {
        const size_t most = 1 + random() % 12;
        std::string forced = "before";
        m.forced(forced, most);
        ASSERT_EQ(forced, "before" + forced_by_masks(m, *tokens, most)) << c.text << " at step " << step;
        total += forced.size() - 6;
        const std::vector<uint32_t> mask = mask_of(m, *tokens);
        std::vector<TokenId> next;
        for (TokenId token = 0; token < 256; ++token) {
          if (allowed(mask, token)) next.push_back(token);
        }
        if (next.empty()) break;
        ASSERT_TRUE(m.accept(next[random() % next.size()]));
      }
    }
  }
  EXPECT_GT(total, 1000u);
}

}  // namespace
}  // namespace sluice::grammar::plain_mask_test
