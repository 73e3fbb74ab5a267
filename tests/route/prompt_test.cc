// Tests what the router reads of a body.
#include "route/prompt.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace sluice::route {
namespace {

std::string letters(size_t n, char c = 'a') { return std::string(n, c); }

std::string chat(const std::string& text, const std::string& more = "") {
  return fmt::format(R"({{"model": "m", "messages": [{{"role": "user", "content": "{}"}}]{}}})", text, more);
}

size_t common(const std::vector<ChainHash>& a, const std::vector<ChainHash>& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

TEST(Prompt, ALongerConversationBeginsWithTheChainOfTheShorterOne) {
  const std::string first = R"({"role": "user", "content": ")" + letters(1000) + "\"}";
  const std::string second = R"({"role": "assistant", "content": ")" + letters(1000, 'b') + "\"}";
  const Prompt one = read_prompt(R"({"messages": [)" + first + "]}");
  const Prompt two = read_prompt(R"({"temperature": 0, "messages": [)" + first + ", " + second + R"(], "n": 1})");
  EXPECT_EQ(one.chain.size(), 4u);
  EXPECT_EQ(two.chain.size(), 8u);
  EXPECT_EQ(common(one.chain, two.chain), one.chain.size());
}

TEST(Prompt, HashesDependOnEverythingBefore) {
  const Prompt one = read_prompt(chat(letters(2000)));
  const Prompt two = read_prompt(chat("b" + letters(1999)));
  ASSERT_EQ(one.chain.size(), two.chain.size());
  for (size_t i = 0; i < one.chain.size(); ++i) EXPECT_NE(one.chain[i], two.chain[i]) << i;
  const Prompt other_model = read_prompt(R"({"model": "n", "prompt": ")" + letters(2000) + "\"}");
  const Prompt same_text = read_prompt(R"({"model": "m", "prompt": ")" + letters(2000) + "\"}");
  EXPECT_EQ(common(other_model.chain, same_text.chain), 0u);
}

TEST(Prompt, ReadsTheTextsOfAllApis) {
  for (const char* field : {"prompt", "input", "inputs", "messages", "system", "instructions", "tools"}) {
    EXPECT_EQ(read_prompt(fmt::format(R"({{"{}": "{}"}})", field, letters(600))).chain.size(), 2u) << field;
    EXPECT_EQ(read_prompt(fmt::format(R"({{"{}": [{}1]}})", field, "1, " + letters(700, '2') + ", ")).chain.size(), 2u);
  }
  EXPECT_TRUE(read_prompt(fmt::format(R"({{"stop": "{}"}})", letters(600))).chain.empty());
  EXPECT_TRUE(read_prompt(chat("short")).chain.empty());
}

// A tool or a system text comes before the messages in what a model sees, wherever the client puts it.
TEST(Prompt, OrderOfMembersDoesNotMatter) {
  const std::string text = letters(400), tools = "[\"" + letters(400, 't') + "\"]";
  const Prompt one = read_prompt(fmt::format(R"({{"tools": {}, "prompt": "{}"}})", tools, text));
  const Prompt two = read_prompt(fmt::format(R"({{"prompt": "{}", "tools": {}}})", text, tools));
  EXPECT_EQ(one.chain, two.chain);
  EXPECT_EQ(one.chain.size(), 3u);
}

TEST(Prompt, IsBounded) {
  const Prompt prompt = read_prompt(chat(letters(1 << 20)));
  EXPECT_EQ(prompt.chain.size(), kMaxPromptBytes / kBlockBytes);
}

TEST(Prompt, ReadsSessions) {
  EXPECT_EQ(read_prompt(R"({"user": "u"})").session, "\"u\"");
  EXPECT_EQ(read_prompt(R"({"user": "u", "session_id": "s"})").session, "\"s\"");
  EXPECT_EQ(read_prompt(R"({"user": "u", "prompt_cache_key": "k", "session_id": "s"})").session, "\"s\"");
  EXPECT_EQ(read_prompt(R"({"user": "u", "prompt_cache_key": "k"})").session, "\"k\"");
  EXPECT_EQ(read_prompt(R"({"user": "", "session_id": null})").session, "");
  EXPECT_EQ(read_prompt(R"({"metadata": {"user": "u"}})").session, "");
  EXPECT_TRUE(read_prompt(R"({"previous_response_id": "resp_1"})").sticky);
  EXPECT_FALSE(read_prompt(R"({"previous_response_id": null})").sticky);
  EXPECT_TRUE(read_prompt(R"({"store": true})").sticky);
  EXPECT_FALSE(read_prompt(R"({"store": false})").sticky);
  EXPECT_TRUE(read_prompt(R"({"session_id": "s"})").sticky);
  EXPECT_FALSE(read_prompt(R"({"user": "u", "prompt_cache_key": "k", "session_id": null})").sticky);
}

TEST(Prompt, QuotesBackslashesAndBracketsInStrings) {
  EXPECT_EQ(read_prompt(R"({"a": "\"}", "b": "\\", "c": ["]", {"\"": "{"}], "user": "u\"v"})").session, R"("u\"v")");
}

// A replica reports what is wrong with a body; the router must only not fail.
TEST(Prompt, MalformedBodiesHaveNoText) {
  for (const char* body : {"", " ", "{", "}", "[]", "[\"user\", \"u\"]", "{\"user\"", "{\"user\":", "{\"user\": \"u",
                           "{\"user\": \"u\\\"}", "{\"user\" \"u\"}", "{user: \"u\"}", "{\"user\": [\"u\"", "\"", "{\"",
                           "{\"\\\"", "{,,,", "{\"a\": ]}"}) {
    const Prompt prompt = read_prompt(body);
    EXPECT_TRUE(prompt.chain.empty() && prompt.session.empty()) << body;
  }
}

}  // namespace
}  // namespace sluice::route
