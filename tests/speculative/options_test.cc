// --speculative-config: what is read, and what is refused by its key.
#include "speculative/options.h"

#include <fmt/core.h>
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

TEST(SpeculativeOptions, AModelMakesItTheMethodDraftModel) {
  const auto short_form = parse_speculative_config(R"({"model": "folder"})");
  ASSERT_TRUE(short_form);
  EXPECT_EQ(short_form->method, "draft_model");
  EXPECT_EQ(short_form->model, "folder");
  EXPECT_EQ(short_form->tokens, 4);
  EXPECT_EQ(short_form->least_probability, 0);
  EXPECT_EQ(short_form->least_tokens, 0);
  const auto all = parse_speculative_config(
      R"({"method": "draft_model", "model": "x", "num_speculative_tokens": 7, "draft_p_min": 0.75, "draft_n_min": 2,
          "draft_tensor_parallel_size": 1})");
  EXPECT_EQ(all->tokens, 7);
  EXPECT_EQ(all->least_probability, 0.75);
  EXPECT_EQ(all->least_tokens, 2);
}

TEST(SpeculativeOptions, LayersOfTheModelAreMtp) {
  for (const char* name : {"mtp", "deepseek_mtp", "ernie_mtp", "glm4_moe_lite_mtp", "glm4_moe_mtp", "mimo_mtp"}) {
    const auto usual = parse_speculative_config(fmt::format(R"({{"method": "{}"}})", name));
    ASSERT_TRUE(usual);
    EXPECT_EQ(usual->method, "mtp");
    EXPECT_TRUE(usual->own_layers);
    EXPECT_EQ(usual->tokens, 1);
  }
  EXPECT_EQ(parse_speculative_config(R"({"method": "mtp", "num_speculative_tokens": 3})")->tokens, 3);
}

TEST(SpeculativeOptions, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> rows[] = {
      {"[]", "expected a JSON object"},
      {"{", "syntax error"},
      {R"({"num_speculative_tokens": 4})", "method is missing"},
      {R"({"method": "eagle3", "num_speculative_tokens": 4})", "method: unknown value \"eagle3\""},
      {R"({"method": "qwen3_next_mtp"})", "method: unknown value \"qwen3_next_mtp\" (expected one of: "},
      {R"({"method": "mtp", "model": "x"})", "unknown key 'model' (method mtp has: "},
      {R"({"method": "mtp", "draft_n_min": 2})", "draft_n_min 2 is above num_speculative_tokens 1"},
      {R"({"method": "ngram"})", "num_speculative_tokens is missing"},
      {R"({"method": "ngram", "num_speculative_tokens": 0})", "num_speculative_tokens: expected an integer from 1 to"},
      {R"({"method": "ngram", "num_speculative_tokens": 1e3})", "num_speculative_tokens: expected an integer from 1"},
      {R"({"method": "ngram", "num_speculative_tokens": 99})", "num_speculative_tokens: expected an integer from 1"},
      {R"({"method": "ngram", "num_speculative_tokens": 4, "model": "x"})",
       "unknown key 'model' (method ngram has: method, num_speculative_tokens, prompt_lookup_min, prompt_lookup_max)"},
      {R"({"model": "x", "prompt_lookup_min": 2})", "unknown key 'prompt_lookup_min' (method draft_model has: "},
      {R"({"method": "draft_model"})", "model is missing"},
      {R"({"model": 7})", "model: expected a name, not 7"},
      {R"({"model": ""})", "model: expected a name, not \"\""},
      {R"({"model": "x", "draft_p_min": 1.5})", "draft_p_min: expected a number from 0 to 1, not 1.5"},
      {R"({"model": "x", "draft_n_min": -1})", "draft_n_min: expected an integer from 0 to"},
      {R"({"model": "x", "draft_n_min": 5})", "draft_n_min 5 is above num_speculative_tokens 4"},
      {R"({"model": "x", "draft_tensor_parallel_size": 0})",
       "draft_tensor_parallel_size: expected an integer from 1 to 64"},
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
