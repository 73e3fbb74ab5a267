// --speculative-config: what is read, and what is refused by its key.
#include "speculative/options.h"

#include <gtest/gtest.h>

#include <utility>

#include "sluice/error.h"

namespace sluice::speculative_options_test {
namespace {

TEST(SpeculativeOptions, DefaultsAreThoseOfVllm) {
  EXPECT_FALSE(parse_speculative_config(""));
  const auto usual = parse_speculative_config(R"({"method": "ngram", "num_speculative_tokens": 4})");
  ASSERT_TRUE(usual);
  EXPECT_EQ(usual->tokens, 4);
  EXPECT_EQ(usual->shortest, 5);
  EXPECT_EQ(usual->longest, 5);
  const auto longest =
      parse_speculative_config(R"({"method":"ngram","num_speculative_tokens":1,"prompt_lookup_max":3})");
  EXPECT_EQ(longest->shortest, 3);
  EXPECT_EQ(longest->longest, 3);
  const auto shortest =
      parse_speculative_config(R"({"method":"ngram","num_speculative_tokens":1,"prompt_lookup_min":2})");
  EXPECT_EQ(shortest->shortest, 2);
  EXPECT_EQ(shortest->longest, 2);
}

TEST(SpeculativeOptions, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> rows[] = {
      {"[]", "expected a JSON object"},
      {"{", "syntax error"},
      {R"({"num_speculative_tokens": 4})", "method is missing"},
      {R"({"method": "eagle3", "num_speculative_tokens": 4})", "method: unknown value \"eagle3\""},
      {R"({"method": "ngram"})", "num_speculative_tokens is missing"},
      {R"({"method": "ngram", "num_speculative_tokens": 0})", "num_speculative_tokens: expected an integer from 1 to"},
      {R"({"method": "ngram", "num_speculative_tokens": 1e3})", "num_speculative_tokens: expected an integer from 1"},
      {R"({"method": "ngram", "num_speculative_tokens": 99})", "num_speculative_tokens: expected an integer from 1"},
      {R"({"method": "ngram", "num_speculative_tokens": 4, "model": "x"})", "unknown key 'model'"},
      {R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 3})",
       "prompt_lookup_min 4 is above prompt_lookup_max 3"},
  };
  for (const auto& [text, message] : rows) {
    SCOPED_TRACE(text);
    try {
      parse_speculative_config(text);
      ADD_FAILURE() << "was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with("--speculative-config: ")) << e.what();
    }
  }
}

}  // namespace
}  // namespace sluice::speculative_options_test
