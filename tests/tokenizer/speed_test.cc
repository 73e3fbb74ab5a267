// Tests that encoding time grows linearly with the length of the text, whatever the text repeats. Quadratic code would
// exceed the limits by far.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/cpu_time.h"
#include "tokenizer/tokenizer.h"

namespace sluice::speed_test {
namespace {

std::string repeated(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

const std::pair<const char*, std::string> kUnits[] = {
    {"letters", "a"},
    {"digits", "9"},
    {"carets", "^"},
    {"underscores", "_"},
    {"spaces", " "},
    {"line breaks", "\n"},
    {"capitals", "A"},
    {"CJK", "中文字"},
    {"emoji", "👨‍👩‍"},
    {"NUL", std::string(1, '\0')},
    {"combining marks", "\u0301\u0327"},
    {"JSON", R"({"a":1,"b":[2,3],"name":"x"},)"},
    {"special tokens", "<|im_start|>"},
    {"begins of special tokens", "<|im_start"},
};

class TokenizerSpeed : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerSpeed, IsLinear) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR + std::string(GetParam()));
  for (const auto& [name, unit] : kUnits) {
    const std::string small = repeated(unit, 64 << 10);
    const std::string large = repeated(unit, 512 << 10);
    // The text is eight times as long: 2.3 per doubling is a factor of 12. Takes the fastest of several runs, until it
    // passes.
    double shortest_small = 1e9;
    double shortest_large = 1e9;
    for (int attempt = 0; attempt < 6; ++attempt) {
      shortest_large = std::min(shortest_large, cpu_seconds([&] { t->encode(large, true, {.most = 1}); }));
      for (int i = 0; i < 3; ++i)
        shortest_small = std::min(shortest_small, cpu_seconds([&] { t->encode(small, true, {.most = 1}); }));
      if (shortest_large < 12 * shortest_small + 0.02) break;
    }
    EXPECT_LT(shortest_large, 20 * shortest_small + 0.02) << name;
#ifdef NDEBUG
    EXPECT_LT(shortest_large, 0.5) << name;
#endif
    std::vector<TokenId> ids = t->encode(large);
    EXPECT_LT(cpu_seconds([&] { t->decode(ids, false); }), 2) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerSpeed,
                         ::testing::Values("/models/minnow-6m/tokenizer.json",
                                           "/tests/goldens/tokenizer/bytelevel-deepseek/tokenizer.json",
                                           "/tests/goldens/tokenizer/bytelevel-o200k/tokenizer.json",
                                           "/tests/goldens/tokenizer/spm-bpe-gemma/tokenizer.json",
                                           "/tests/goldens/tokenizer/spm-bpe-llama2/tokenizer.json",
                                           "/tests/goldens/tokenizer/unigram-t5/tokenizer.json",
                                           "/tests/goldens/tokenizer/wordpiece-bert-uncased/tokenizer.json"));

}  // namespace
}  // namespace sluice::speed_test
