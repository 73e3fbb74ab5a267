// What follows an earlier occurrence of a text's end, compared with a search that tries every match.
#include "speculative/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::ngram_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<TokenId> draft(const SpeculativeOptions& options, const std::vector<TokenId>& text, int most = 100) {
  std::vector<TokenId> out;
  draft_ngram(options, text, most, out);
  return out;
}

// The longest match first, then the latest one.
std::vector<TokenId> plain_draft(const SpeculativeOptions& options, const std::vector<TokenId>& text, int most) {
  for (int n = options.longest; n >= options.shortest; --n) {
    for (int begin = static_cast<int>(text.size()) - n - 1; begin >= 0; --begin) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + begin)) continue;
      std::vector<TokenId> all = text;
      for (int i = 0; i < std::min(most, options.tokens); ++i) all.push_back(all[static_cast<size_t>(begin + n + i)]);
      return {all.begin() + static_cast<int64_t>(text.size()), all.end()};
    }
  }
  return {};
}

TEST(Ngram, WhatFollowedBefore) {
  const SpeculativeOptions options{.tokens = 3, .shortest = 2, .longest = 3};
  EXPECT_THAT(draft(options, {1, 2, 3, 4, 5, 6, 1, 2}), ElementsAre(3, 4, 5));
  EXPECT_THAT(draft(options, {1, 2, 3, 4, 5, 6, 1, 2}, 1), ElementsAre(3));
  EXPECT_THAT(draft(options, {1, 2, 3, 4, 9, 2}), IsEmpty()) << "one token matches";
  EXPECT_THAT(draft(options, {0, 1, 2, 7, 1, 2, 8, 0, 1, 2}), ElementsAre(7, 1, 2)) << "the longest match";
  EXPECT_THAT(draft(options, {1, 2, 7, 1, 2, 8, 1, 2}), ElementsAre(8, 1, 2)) << "the latest match";
}

TEST(Ngram, ADraftGoesOnWithItself) {
  const SpeculativeOptions options{.tokens = 5, .shortest = 1, .longest = 2};
  EXPECT_THAT(draft(options, {4, 4, 4}), ElementsAre(4, 4, 4, 4, 4));
  EXPECT_THAT(draft(options, {1, 2, 3, 1, 2}), ElementsAre(3, 1, 2, 3, 1));
}

TEST(Ngram, ShortTexts) {
  const SpeculativeOptions options{.tokens = 5, .shortest = 2, .longest = 4};
  EXPECT_THAT(draft(options, {}), IsEmpty());
  EXPECT_THAT(draft(options, {1}), IsEmpty());
  EXPECT_THAT(draft(options, {1, 1}), IsEmpty());
  EXPECT_THAT(draft(options, {1, 1, 1}), ElementsAre(1, 1, 1, 1, 1));
}

TEST(Ngram, EqualsAPlainSearch) {
  std::mt19937 random(1);
  const auto uniform = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  int found = 0;
  for (int round = 0; round < 20000; ++round) {
    SpeculativeOptions options{.tokens = uniform(1, 6), .shortest = uniform(1, 4)};
    options.longest = options.shortest + uniform(0, 4);
    std::vector<TokenId> text(static_cast<size_t>(uniform(0, 30)));
    const int vocab = uniform(1, 5);
    for (TokenId& token : text) token = uniform(1, vocab);
    const int most = uniform(1, 8);
    const std::vector<TokenId> expected = plain_draft(options, text, most);
    ASSERT_EQ(draft(options, text, most), expected) << "round " << round;
    found += expected.empty() ? 0 : 1;
  }
  EXPECT_GT(found, 5000);
  EXPECT_LT(found, 19000);
}

}  // namespace
}  // namespace sluice::ngram_test
