// Answers with and without drafts.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/collect.h"

namespace sluice::testing {

// The choices of every request. All requests run at the same time.
inline std::vector<std::vector<Choice>> answers(Engine& engine, const std::vector<Request>& requests) {
  Collector collector(engine);
  for (const Request& request : requests) collector.submit(request);
  std::vector<std::vector<Choice>> all;
  for (size_t i = 0; i < requests.size(); ++i) all.push_back(collector.answer(i));
  return all;
}

inline void expect_equal(const std::vector<std::vector<Choice>>& actual,
                         const std::vector<std::vector<Choice>>& wanted) {
  ASSERT_EQ(actual.size(), wanted.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].size(), wanted[i].size());
    for (size_t c = 0; c < actual[i].size(); ++c) {
      EXPECT_EQ(actual[i][c].tokens, wanted[i][c].tokens) << "request " << i << ", choice " << c;
      EXPECT_EQ(actual[i][c].text, wanted[i][c].text);
      EXPECT_EQ(actual[i][c].finish->reason, wanted[i][c].finish->reason);
      ASSERT_EQ(actual[i][c].logprobs.size(), wanted[i][c].logprobs.size());
      for (size_t t = 0; t < actual[i][c].logprobs.size(); ++t) {
        EXPECT_EQ(actual[i][c].logprobs[t].token.logprob, wanted[i][c].logprobs[t].token.logprob);
      }
    }
  }
}

inline double drafted(const Engine& engine) { return metric(engine, "vllm:spec_decode_num_draft_tokens"); }
inline double accepted(const Engine& engine) { return metric(engine, "vllm:spec_decode_num_accepted_tokens"); }

}  // namespace sluice::testing
