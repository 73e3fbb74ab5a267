// Tests that texts encoded by several threads get the same tokens as with one thread, wherever their parts begin.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "sluice/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace sluice::threads_test {
namespace {

using tokenizer::Regex;
using tokenizer::Threads;
using Random = std::mt19937_64;

constexpr const char* kKinds[] = {"bytelevel-deepseek", "bytelevel-digits-added", "bytelevel-gpt2",
                                  "bytelevel-llama3",   "bytelevel-o200k",        "spm-bpe-gemma",
                                  "spm-bpe-llama2",     "spm-metaspace-first",    "unigram-t5",
                                  "unigram-xlmr",       "wordpiece-bert-cased",   "wordpiece-bert-uncased"};

// Words, and text that makes patterns look ahead: runs of white space, digits, marks, characters of every length.
std::string random_text(Random& random, int words) {
  static constexpr std::u32string_view kOdd = U" \n\r\t  .,'!’sSä漢字é́▁😀\u00A0\u2028_-12";
  std::string text;
  for (int i = 0; i < words; ++i) {
    const int kind = static_cast<int>(random() % 8);
    for (int n = 1 + static_cast<int>(random() % (kind == 0 ? 60 : 9)); n > 0; --n) {
      const char32_t c = kind < 5    ? U'a' + random() % 26
                         : kind == 5 ? U'0' + random() % 10
                         : kind == 6 ? U" \n"[random() % 2]
                                     : kOdd[random() % kOdd.size()];
      append_utf8(text, c);
    }
    if (kind < 6) text += ' ';
  }
  return text;
}

TEST(Threads, AllKindsOfTokenizersGiveTheSameTokens) {
  for (const char* kind : kKinds) {
    SCOPED_TRACE(kind);
    const auto tokenizer =
        Tokenizer::from_file(std::string(SLUICE_SOURCE_DIR "/tests/goldens/tokenizer/") + kind + "/tokenizer.json");
    Random random(1);
    for (int round = 0; round < 20; ++round) {
      const std::string text = random_text(random, 1 + static_cast<int>(random() % 300));
      const auto alone = tokenizer->encode(text, true, {.most = 1});
      for (const int most : {2, 5}) {
        const Threads threads{.most = most, .share = 1 + random() % 300};
        ASSERT_EQ(tokenizer->encode(text, true, threads), alone) << "round " << round << ", " << most << " threads";
      }
    }
  }
}

std::vector<std::pair<size_t, size_t>> all_matches(const Regex& regex, const std::string& text, Threads threads) {
  std::vector<std::pair<size_t, size_t>> found;
  regex.for_each_match(text, threads, [&](size_t begin, size_t end) { found.emplace_back(begin, end); });
  return found;
}

// Patterns whose searches converge late, never, or after empty matches.
TEST(Threads, SearchesThatBeginElsewhereFindTheSame) {
  for (const char* pattern : {"ab?", "(ab)+", "a{3}", "a*", "", "(?<=a)b|a(?=b)", "aa|aba|b", "(a|b){7}", "^a+|b$",
                              "a[ab\n]*a", "\\s+(?!\\S)|\\s+|a+"}) {
    const Regex regex(pattern);
    Random random(2);
    for (int round = 0; round < 100; ++round) {
      std::string text;
      for (int n = static_cast<int>(random() % 120); n > 0; --n) text += "aaaaab\n "[random() % (round % 7 + 2)];
      const auto alone = all_matches(regex, text, {.most = 1});
      for (const int most : {2, 5}) {
        const Threads threads{.most = most, .share = 1 + random() % 20};
        ASSERT_EQ(all_matches(regex, text, threads), alone) << pattern << " in \"" << text << '"';
      }
    }
  }
}

TEST(Threads, AreTakenForLongTextsOnly) {
  EXPECT_EQ(Threads{}.for_text(100000), 1);
  EXPECT_EQ((Threads{.most = 3, .share = 10}).for_text(19), 1);
  EXPECT_EQ((Threads{.most = 3, .share = 10}).for_text(20), 2);
  EXPECT_EQ((Threads{.most = 3, .share = 10}).for_text(1000), 3);
  EXPECT_EQ((Threads{.most = 1, .share = 10}).for_text(1000), 1);
}

TEST(Threads, TheFirstErrorIsThrownWhenAllHaveEnded) {
  std::atomic<int> ended = 0;
  try {
    tokenizer::run_parts(5, [&](int part) {
      ++ended;
      if (part % 2 == 1) throw Error(ErrorCode::kInvalidRequest, "part " + std::to_string(part));
    });
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "part 1");
  }
  EXPECT_EQ(ended, 5);
}

}  // namespace
}  // namespace sluice::threads_test
