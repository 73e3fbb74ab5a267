// Samplers that look at the text so far, against the plainest search.
#include "sampling/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace sluice::history_test {
namespace {

using Tokens = std::vector<TokenId>;

std::vector<ops::LogitEdit> edits_of(const SamplingParams& params, const Tokens& text, int prompt_length = 0) {
  const SampleTask task{.params = &params, .tokens = &text, .prompt_length = prompt_length};
  std::vector<ops::LogitEdit> edits;
  append_history_edits(task, edits);
  EXPECT_LE(edits.size(), most_history_edits(task));
  return edits;
}

std::set<TokenId> banned(const SamplingParams& params, const Tokens& text, int prompt_length = 0) {
  std::set<TokenId> tokens;
  for (const ops::LogitEdit& edit : edits_of(params, text, prompt_length)) {
    EXPECT_EQ(edit.bias, -INFINITY);
    tokens.insert(edit.id);
  }
  return tokens;
}

std::map<TokenId, float> penalties(const SamplingParams& params, const Tokens& text) {
  std::map<TokenId, float> found;
  for (const ops::LogitEdit& edit : edits_of(params, text)) {
    EXPECT_TRUE(found.emplace(edit.id, edit.late).second);
  }
  return found;
}

Tokens random_text(std::mt19937& random, int most, int kinds) {
  Tokens text(random() % static_cast<size_t>(most));
  for (TokenId& token : text) token = static_cast<TokenId>(random() % static_cast<size_t>(kinds));
  return text;
}

TEST(History, NoRepeatNgramIsThatOfASearch) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const Tokens text = random_text(random, 30, 3);
    const size_t n = 1 + random() % 5;
    std::set<TokenId> want;
    for (size_t i = 0; i + n <= text.size(); ++i) {
      if (std::equal(text.begin() + i, text.begin() + i + (n - 1), text.end() - (n - 1))) want.insert(text[i + n - 1]);
    }
    EXPECT_EQ(banned({.no_repeat_ngram_size = static_cast<int>(n)}, text), want) << "round " << round << ", n " << n;
  }
}

TEST(History, DryIsThatOfASearch) {
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    const Tokens text = random_text(random, 40, 4);
    SamplingParams p{.dry_multiplier = 0.8, .dry_base = 1.5, .dry_allowed_length = 1 + static_cast<int>(random() % 3)};
    p.dry_penalty_last_n = random() % 2 == 0 ? -1 : static_cast<int>(random() % 40);
    if (random() % 2 == 0) p.dry_breaker_tokens = {3};
    const size_t window = p.dry_penalty_last_n < 0 ? text.size() : static_cast<size_t>(p.dry_penalty_last_n);
    const Tokens seen(text.end() - static_cast<std::ptrdiff_t>(std::min(window, text.size())), text.end());
    std::map<TokenId, float> want;
    for (size_t end = 1; end < seen.size(); ++end) {  // an earlier part that ends before seen[end]
      int length = 0;
      while (static_cast<size_t>(length) < end && seen[end - 1 - length] == seen[seen.size() - 1 - length] &&
             (p.dry_breaker_tokens.empty() || seen[end - 1 - length] != 3)) {
        ++length;
      }
      if (length < p.dry_allowed_length) continue;
      const auto penalty = static_cast<float>(0.8 * std::pow(1.5, length - p.dry_allowed_length));
      want[seen[end]] = std::max(want[seen[end]], penalty);
    }
    EXPECT_EQ(penalties(p, text), want) << "round " << round;
  }
}

// A text of one token again and again is the worst case of a search.
TEST(History, HostileRepetitionTakesLinearTime) {
  const Tokens text(1'000'000, 5);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(penalties({.dry_multiplier = 1.0}, text).size(), 1u);
  EXPECT_EQ(banned({.no_repeat_ngram_size = 1000}, text), std::set<TokenId>{5});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(History, ADryPenaltyIsFinite) {
  const Tokens text(5000, 5);
  const float penalty = penalties({.dry_multiplier = 100, .dry_base = 10}, text).at(5);
  EXPECT_TRUE(std::isfinite(penalty));
  EXPECT_GT(penalty, 1e29f);
}

TEST(History, BadWordsEndInTheOutput) {
  SamplingParams p;
  p.bad_words = {"unused here"};
  p.bad_word_tokens = {{7}, {1, 2, 3}, {2, 9}};
  EXPECT_EQ(banned(p, {}), std::set<TokenId>{7});
  EXPECT_EQ(banned(p, {5, 1, 2}), (std::set<TokenId>{7, 3, 9}));
  EXPECT_EQ(banned(p, {5, 1, 2}, 2), (std::set<TokenId>{7, 9})) << "the prompt does not count";
}

TEST(History, ProcessorsAddBiases) {
  SamplingParams p;
  p.logit_processors = {[](std::span<const TokenId> text, int prompt_length, auto& biases) {
                          biases.emplace_back(text.back(), static_cast<float>(prompt_length));
                        },
                        [](std::span<const TokenId>, int, auto& biases) { biases.emplace_back(0, -1.0f); }};
  EXPECT_TRUE(needs_history(p));
  const auto edits = edits_of(p, {4, 5, 6}, 2);
  ASSERT_EQ(edits.size(), 2u);
  EXPECT_EQ(edits[0].id, 6);
  EXPECT_EQ(edits[0].bias, 2.0f);
  EXPECT_EQ(edits[1].bias, -1.0f);
}

TEST(History, ASamplerThatIsNotListedIsOff) {
  SamplingParams p{.dry_multiplier = 1.0};
  p.samplers = {"top_k"};
  EXPECT_TRUE(penalties(p, Tokens(10, 5)).empty());
  p.samplers = {"dry", "top_k"};
  EXPECT_FALSE(penalties(p, Tokens(10, 5)).empty());
}

}  // namespace
}  // namespace sluice::history_test
