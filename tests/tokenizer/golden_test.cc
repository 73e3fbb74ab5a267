// Checks the vectors of tests/goldens/tokenizer: Hugging Face's tokens of 140 texts for each kind of tokenizer.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vectors.h"

namespace sluice::golden_test {
namespace {

const std::string kGoldens = SLUICE_SOURCE_DIR "/tests/goldens/tokenizer/";

class TokenizerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = kGoldens + GetParam();
    tokenizer_ = Tokenizer::from_file(folder + "/tokenizer.json");
    std::ifstream lines(folder + "/vectors.jsonl");
    for (std::string line; std::getline(lines, line);) vectors_.push_back(parse_vector(line));
    ASSERT_GE(vectors_.size(), 100u);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Json> vectors_;
};

TEST_P(TokenizerGolden, Encodes) {
  for (const Json& v : vectors_) {
    const auto text = v["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, true), v["ids"].get<std::vector<TokenId>>()) << v["text"];
    EXPECT_EQ(tokenizer_->encode(text, false), v["ids_no_special"].get<std::vector<TokenId>>()) << v["text"];
  }
}

// "decoded" comes from the IDs without special tokens, "decoded_skip_special" from those with them.
TEST_P(TokenizerGolden, Decodes) {
  for (const Json& v : vectors_) {
    EXPECT_EQ(tokenizer_->decode(v["ids_no_special"].get<std::vector<TokenId>>(), false),
              v["decoded"].get<std::string>())
        << v["text"];
    EXPECT_EQ(tokenizer_->decode(v["ids"].get<std::vector<TokenId>>(), true),
              v["decoded_skip_special"].get<std::string>())
        << v["text"];
  }
}

TEST_P(TokenizerGolden, DecodesAsAStream) {
  for (const Json& v : vectors_) {
    for (const bool skip : {false, true}) {
      StreamDecoder stream(*tokenizer_, skip);
      std::string text;
      for (const TokenId id : v[skip ? "ids" : "ids_no_special"].get<std::vector<TokenId>>()) text += stream.push(id);
      text += stream.finish();
      EXPECT_EQ(text, v[skip ? "decoded_skip_special" : "decoded"].get<std::string>()) << v["text"];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden,
                         ::testing::Values("bytelevel-deepseek", "bytelevel-digits-added", "bytelevel-gpt2",
                                           "bytelevel-llama3", "bytelevel-o200k", "spm-bpe-gemma", "spm-bpe-llama2",
                                           "spm-metaspace-first", "unigram-t5", "unigram-xlmr", "wordpiece-bert-cased",
                                           "wordpiece-bert-uncased"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace sluice::golden_test
