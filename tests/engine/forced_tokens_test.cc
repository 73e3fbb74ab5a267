// The tokens of forced text are those that the tokenizer writes for the whole text, whatever follows.
#include "engine/forced_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace sluice::forced_tokens_test {
namespace {

using ::testing::IsEmpty;

std::vector<std::string> plain_tokens(const Tokenizer& tokenizer) {
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) tokens[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return tokens;
}

class ForcedTokensTest : public ::testing::Test {
 protected:
  std::vector<TokenId> encode(std::string_view text) const { return tokenizer_->encode(text, false); }
  std::vector<TokenId> forced(std::span<const TokenId> before, std::string_view text, bool ends, int most = 100) const {
    std::vector<TokenId> out;
    const int count = tokens_.append(before, text, ends, most, out);
    EXPECT_EQ(count, static_cast<int>(out.size()));
    return out;
  }
  std::string text_of(std::span<const TokenId> tokens) const {
    std::string text;
    for (const TokenId id : tokens) text += tokenizer_->token_bytes(id);
    return text;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::open(std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m");
  const ForcedTokens tokens_{*tokenizer_, plain_tokens(*tokenizer_)};
};

// Cuts texts at random places into what is known, what is forced and what follows. Where the known tokens are the
// tokenizer's, so are the forced ones.
TEST_F(ForcedTokensTest, LastWhateverFollows) {
  const std::string_view parts[] = {R"({"name": ")",
                                    R"("city_population")",
                                    ": ",
                                    "[1, 2, 33, 444]",
                                    "\n    ",
                                    "The capital of France is Paris.",
                                    R"({"a":{"b":[{"c":null}]}})",
                                    "don't you'll ",
                                    "  two  blanks ",
                                    "año übermäßig 東京 🙂 ",
                                    R"(", "kind": "village", "visits": )",
                                    "12345"};
  std::mt19937 random(1);
  int taken = 0, cut = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 6; ++i) text += parts[random() % std::size(parts)];
    const std::vector<TokenId> all = encode(text);
    const size_t known = random() % all.size();
    const std::string before = text_of(std::span(all).first(known));
    const size_t length = 1 + random() % (text.size() - before.size());
    const std::vector<TokenId> next =
        forced(std::span(all).first(known), std::string_view(text).substr(before.size(), length), false);
    ASSERT_LE(next.size(), all.size() - known);
    ASSERT_TRUE(std::equal(next.begin(), next.end(), all.begin() + static_cast<int64_t>(known)))
        << text << " after " << before << ", " << length << " bytes";
    ASSERT_LE(text_of(next).size(), length);
    taken += static_cast<int>(next.size());
    cut += text_of(next).size() < length ? 1 : 0;
  }
  EXPECT_GT(taken, 10000);
  EXPECT_GT(cut, 1000);
}

TEST_F(ForcedTokensTest, NothingIsHeldBackAtTheEnd) {
  const std::vector<TokenId> all = encode(R"({"city": "Paris"})");
  EXPECT_EQ(forced(std::span(all).first(1), text_of(std::span(all).subspan(1)), true),
            std::vector<TokenId>(all.begin() + 1, all.end()));
  EXPECT_THAT(forced({}, "capit", false), IsEmpty()) << "a token may be longer than this";
  EXPECT_EQ(forced({}, "capit", true), encode("capit"));
}

TEST_F(ForcedTokensTest, AtMostAsManyAsAsked) {
  const std::vector<TokenId> all = encode(R"({"city": "Paris", "country": "France"})");
  EXPECT_EQ(forced({}, text_of(all), true, 3), std::vector<TokenId>(all.begin(), all.begin() + 3));
  EXPECT_THAT(forced({}, text_of(all), true, 0), IsEmpty());
}

// The text of a special token is no special token.
TEST_F(ForcedTokensTest, EndBeforeTheTextOfASpecialToken) {
  std::string special;
  for (TokenId id = 0; id < tokenizer_->vocab_size() && special.empty(); ++id) {
    if (tokenizer_->is_special(id)) special = tokenizer_->token_text(id);
  }
  ASSERT_FALSE(special.empty());
  EXPECT_EQ(forced({}, "one two three " + special + " four", true), encode("one two three "));
}

TEST_F(ForcedTokensTest, HalfACharacterIsLeft) {
  const std::string text = "una ni\xc3\xb1";  // ends with a whole ñ
  EXPECT_EQ(forced({}, text.substr(0, text.size() - 1), true), forced({}, "una ni", false));
}

// A token that the tokenizer would not have written before this text.
TEST_F(ForcedTokensTest, FollowAnyToken) {
  const std::vector<TokenId> before = encode("c");
  ASSERT_EQ(before.size(), 1u);
  const std::vector<TokenId> next = forced(before, "apital of France is", true);
  EXPECT_EQ(text_of(next), "apital of France is");
}

}  // namespace
}  // namespace sluice::forced_tokens_test
