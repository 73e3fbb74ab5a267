// The chain that a request's parameters ask for, and what stateful samplers remember.
#include "sampling/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace sluice::steps_test {
namespace {

using enum ops::SamplerKind;
using testing::ElementsAre;

std::vector<ops::SamplerStep> steps_of(const SamplingParams& params, const SamplerState& state = {}) {
  std::vector<ops::SamplerStep> steps;
  append_steps({.params = &params, .state = &state}, 1000, steps);
  return steps;
}

std::vector<ops::SamplerKind> kinds_of(const SamplingParams& params) {
  std::vector<ops::SamplerKind> kinds;
  for (const ops::SamplerStep& step : steps_of(params)) kinds.push_back(step.kind);
  return kinds;
}

const SamplingParams kEverything = {.temperature = 0.5,
                                    .top_k = 5,
                                    .top_p = 0.5,
                                    .min_p = 0.1,
                                    .top_n_sigma = 1.0,
                                    .typical_p = 0.9,
                                    .top_a = 0.1,
                                    .epsilon_cutoff = 0.1,
                                    .eta_cutoff = 0.1,
                                    .xtc_probability = 0.1,
                                    .smoothing_factor = 0.1,
                                    .adaptive_target = 0.5};

TEST(Steps, TheUsualOrder) {
  EXPECT_THAT(kinds_of(kEverything), ElementsAre(kTopNSigma, kTemperature, kSmoothing, kTopK, kTypicalP, kTopP, kMinP,
                                                 kTopA, kEpsilon, kEta, kXtc, kAdaptiveP));
  EXPECT_TRUE(kinds_of({}).empty());
}

TEST(Steps, OnlyNewSamplersNeedAChain) {
  EXPECT_FALSE(has_chain({.temperature = 0.5, .top_k = 5, .top_p = 0.5, .min_p = 0.1, .top_n_sigma = 1.0}));
  EXPECT_FALSE(has_chain({.repetition_penalty = 2, .xtc_threshold = 0.3, .mirostat_tau = 3}));
  EXPECT_TRUE(has_chain({.top_a = 0.1}));
}

TEST(Steps, AListHasItsOwnOrder) {
  SamplingParams p = kEverything;
  p.samplers = {"penalties", "adaptive_p", "xtc", "top_k", "temperature"};
  EXPECT_TRUE(has_chain(p));
  EXPECT_THAT(kinds_of(p), ElementsAre(kXtc, kTopK, kTemperature, kAdaptiveP)) << "adaptive_p samples";
  p.samplers = {"temperature"};
  EXPECT_THAT(kinds_of(p), ElementsAre(kTemperature));
}

TEST(Steps, WrongListsAreRefused) {
  const auto error = [](std::vector<std::string> names) { return error_of_order(names); };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({"penalties", "dry", "xtc", "temperature"}), "");
  EXPECT_THAT(error({"top_x"}),
              testing::AllOf(testing::HasSubstr("'top_x'"), testing::HasSubstr("penalties, dry, top_n")));
  EXPECT_THAT(error({"xtc", "xtc"}), testing::HasSubstr("'xtc' is there more than once"));
  EXPECT_THAT(error({"dry", "penalties"}), testing::HasSubstr("'penalties' comes too late"));
  EXPECT_THAT(error({"xtc", "dry"}), testing::HasSubstr("'dry' comes too late"));
}

TEST(Steps, MirostatLearns) {
  SamplingParams p = kEverything;
  p.mirostat = 2, p.mirostat_tau = 4.0, p.mirostat_eta = 0.25;
  p.samplers = {"top_k"};
  EXPECT_THAT(kinds_of(p), ElementsAre(kTemperature, kMirostat2)) << "alone, as in llama.cpp";
  p.mirostat = 1;
  EXPECT_THAT(kinds_of(p), ElementsAre(kTemperature, kMirostat1));
  EXPECT_TRUE(needs_state(p));
  SamplerState state;
  EXPECT_EQ(steps_of(p, state).back().b, 8.0f) << "twice tau";
  EXPECT_EQ(steps_of(p, state).back().count, 1000);
  state = next_state({.params = &p, .state = &state}, 1.0f / 64);  // 6 bits
  EXPECT_FLOAT_EQ(steps_of(p, state).back().b, 8.0f - 0.25f * (6 - 4));
  state = next_state({.params = &p, .state = &state}, 0.5f);
  EXPECT_FLOAT_EQ(steps_of(p, state).back().b, 7.5f - 0.25f * (1 - 4));
}

TEST(Steps, AdaptivePRemembersProbabilities) {
  const SamplingParams p{.adaptive_target = 0.4, .adaptive_decay = 0.5};
  SamplerState state;
  EXPECT_FLOAT_EQ(steps_of(p, state).back().b, 0.4f);
  // It begins as if it had sampled at the target for ever: a sum of 0.4 * 2 and a weight of 2.
  state = next_state({.params = &p, .state = &state}, 0.9f);
  EXPECT_FLOAT_EQ(steps_of(p, state).back().b, 0.8f - (0.9f + 0.5f * 0.8f) / (1 + 0.5f * 2));
}

}  // namespace
}  // namespace sluice::steps_test
