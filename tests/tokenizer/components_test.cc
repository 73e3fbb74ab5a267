// Tests every component of tokenizer.json separately, against tests/goldens/tokenizer/components (see make.py there).
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace sluice::components_test {
namespace {

using Ids = std::vector<TokenId>;

std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  StreamDecoder decoder(tokenizer, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

TEST(TokenizerComponents, DoWhatHuggingFacesDo) {
  std::ifstream lines(SLUICE_SOURCE_DIR "/tests/goldens/tokenizer/components/cases.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const Json base = parse_json(line);
  ASSERT_TRUE(std::getline(lines, line));
  const auto texts = parse_json(line).get<std::vector<std::string>>();
  int rules = 0;
  while (std::getline(lines, line)) {
    const Json entry = parse_json(line);
    const std::string rule = entry["rule"].dump();
    SCOPED_TRACE(rule.substr(0, 300));
    Json json = base;
    for (const auto& [key, value] : entry["rule"].items()) json[key] = value;
    const auto tokenizer = Tokenizer::from_json(json.dump(), "tokenizer.json");
    ASSERT_EQ(entry["cases"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const Json& c = entry["cases"][i];  // null: as the text, or as without the option
      const std::string& text = texts[i];
      SCOPED_TRACE(text);
      const auto ids = c[0].get<Ids>();
      const auto decoded = c[2].is_null() ? text : c[2].get<std::string>();
      const auto skipped = c[3].is_null() ? decoded : c[3].get<std::string>();
      EXPECT_EQ(tokenizer->encode(text), ids);
      EXPECT_EQ(tokenizer->encode(text, false), c[1].is_null() ? ids : c[1].get<Ids>());
      EXPECT_EQ(tokenizer->decode(ids, false), decoded);
      EXPECT_EQ(tokenizer->decode(ids, true), skipped);
      EXPECT_EQ(stream(*tokenizer, ids, false), decoded);
      EXPECT_EQ(stream(*tokenizer, ids, true), skipped);
    }
    ++rules;
  }
  EXPECT_GE(rules, 100);
}

}  // namespace
}  // namespace sluice::components_test
