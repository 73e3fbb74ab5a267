// Tests Llama 3's vocabulary at full size, from the folder named by SLUICE_GOLDENS.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace sluice::third_party_test {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::vector<std::string> split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(by, begin)) != std::string::npos; begin = at + by.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Combines encoder.json and vocab.bpe into one tokenizer.json.
std::string llama3_json(const std::string& folder) {
  Json json = parse_json(read(SLUICE_SOURCE_DIR "/tests/goldens/tokenizer/bytelevel-llama3/tokenizer.json"));
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  json["model"]["vocab"] = parse_json(read(folder + "encoder.json"));
  Json merges = Json::array();
  for (const std::string& line : split(read(folder + "vocab.bpe"), "\n")) {
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  json["model"]["merges"] = std::move(merges);
  return json.dump();
}

TEST(ThirdPartyTokenizers, Llama3) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (goldens == nullptr) GTEST_SKIP() << "SLUICE_GOLDENS is not set";
  const std::string folder = fmt::format("{}/llama3_bpe/", goldens);
  const std::string json = llama3_json(folder);
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::from_json(json, "llama3");
  RecordProperty("load_ms",
                 static_cast<int>((std::chrono::steady_clock::now() - start) / std::chrono::milliseconds(1)));
  const auto texts = split(read(folder + "vectors.inp"), "\n__ggml_vocab_test__\n");
  std::ifstream lines(folder + "vectors.out");
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::istringstream numbers(line);
    std::vector<TokenId> ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    ASSERT_LT(count, texts.size());
    EXPECT_EQ(tokenizer->encode(texts[count]), ids) << texts[count];
  }
  EXPECT_GT(count, 40u);
}

}  // namespace
}  // namespace sluice::third_party_test
