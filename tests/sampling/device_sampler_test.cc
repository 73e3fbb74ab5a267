// Compares sampling on a device, with the scalar ops, with sampling on the host. Greedy tokens are equal, and samples
// come from the same set of tokens. Errors, log-probabilities and ranks are equal.
#include "sampling/device_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

// Parameters are designated initialisers; omitted fields have their defaults.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace sluice {
namespace {

constexpr int kRows = 6;

struct Request {
  SamplingParams params;
  PenaltyCounts counts;
};

class DeviceSamplerTest : public ::testing::Test {
 protected:
  std::vector<SampleResult> on_device(const std::vector<float>& logits, const std::vector<SampleTask>& tasks) {
    const auto vocab = static_cast<int64_t>(logits.size()) / kRows;
    const Tensor view(const_cast<float*>(logits.data()), &kFloat32, {kRows, vocab});
    DeviceSampler sampler(queue_, kRows, static_cast<int>(vocab));
    ahead_ = sampler.begin(context_, view, tasks);
    return sampler.finish(context_, tasks);
  }
  std::vector<SampleResult> sample_on_host(const std::vector<float>& logits, const std::vector<SampleTask>& tasks) {
    const int vocab = static_cast<int>(logits.size()) / kRows;
    return Sampler(threads_).sample({.data = logits.data(), .rows = kRows, .vocab = vocab, .stride = vocab}, tasks);
  }
  TokenId token(int vocab) { return static_cast<TokenId>(random_() % static_cast<uint32_t>(vocab)); }
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  void make(int vocab, bool samples, Request& r) {
    SamplingParams& p = r.params;
    p.temperature = 0.0;
    if (samples) {
      p.temperature = 0.8;
      p.top_k = chance(50) ? 5 : -1;
      if (p.top_k < 0) p.top_p = 0.7;
    }
    for (int i = static_cast<int>(random_() % 4); i > 0; --i)
      p.logit_bias.emplace_back(token(vocab), chance(50) ? -50.0f : 3.0f);
    if (chance(30)) {
      std::vector<TokenId> allowed;
      for (int i = 0; i < 3 + vocab / 4; ++i) allowed.push_back(token(vocab));
      p.allowed_token_ids = std::move(allowed);
    }
    if (chance(60)) {
      p.repetition_penalty = 1.4, p.presence_penalty = 0.3, p.frequency_penalty = 0.2;
      std::vector<TokenId> prompt;
      for (int i = 0; i < vocab; ++i) prompt.push_back(token(vocab));
      r.counts.add_prompt(prompt);
      for (int i = 0; i < 10; ++i) r.counts.add_output(token(vocab));
    }
    if (chance(30)) p.min_tokens = 4;
  }

  // The host eventually samples the token too.
  void expect_kept(const std::vector<float>& logits, SampleTask task, TokenId token) {
    task.logprobs = -1;
    bool sampled = false;
    for (int i = 0; i < 4000 && !sampled; ++i) {
      task.seed = static_cast<uint64_t>(i);
      sampled = sample_on_host(logits, {task})[0].token == token;
    }
    EXPECT_TRUE(sampled) << token;
  }

  void expect_equal(const SampleResult& got, const SampleResult& want) {
    EXPECT_EQ(got.error, want.error);
    EXPECT_EQ(got.bad_logits, want.bad_logits);
    EXPECT_EQ(got.token, want.token);
    const auto expect_token = [](const TokenLogprob& g, const TokenLogprob& w) {
      EXPECT_EQ(g.id, w.id);
      EXPECT_EQ(g.rank, w.rank);
      if (std::isfinite(w.logprob)) {
        EXPECT_NEAR(g.logprob, w.logprob, 1e-5);
      } else {
        EXPECT_EQ(g.logprob, w.logprob);
      }
    };
    expect_token(got.logprobs.token, want.logprobs.token);
    ASSERT_EQ(got.logprobs.top.size(), want.logprobs.top.size());
    for (size_t i = 0; i < want.logprobs.top.size(); ++i) expect_token(got.logprobs.top[i], want.logprobs.top[i]);
  }

  ThreadPool threads_{2};
  ops::Queue queue_{ops::select_backend("reference").open(0), threads_};
  Arena arena_{1 << 16};
  ops::Ctx context_{queue_, arena_};
  std::mt19937 random_{7};
  bool ahead_ = false;
};

TEST_F(DeviceSamplerTest, AgreesWithTheHost) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const int vocab = round % 3 == 0 ? 40 : round % 3 == 1 ? 333 : 2000;
    std::normal_distribution<float> normal(0.0f, round % 5 == 4 ? 0.01f : 4.0f);
    std::vector<float> logits(static_cast<size_t>(kRows * vocab));
    for (float& logit : logits) logit = chance(5) ? -INFINITY : normal(random_);
    std::vector<TokenId> ends = {token(vocab), -1, vocab};
    std::vector<Request> requests(kRows);
    std::vector<SampleTask> tasks;
    for (int i = 0; i < kRows; ++i) {
      make(vocab, round % 2 == 1, requests[i]);
      tasks.push_back({.row = i,
                       .target = chance(15) ? token(vocab) : -1,
                       .params = &requests[i].params,
                       .counts = requests[i].counts.entries().empty() ? nullptr : &requests[i].counts,
                       .end_tokens = ends,
                       .seed = random_(),
                       .choice = i,
                       .position = static_cast<int>(random_() % 8),
                       .logprobs = static_cast<int>(random_() % 22) - 1});
    }
    const auto got = on_device(logits, tasks);
    auto want = sample_on_host(logits, tasks);
    for (int i = 0; i < kRows; ++i) {
      SCOPED_TRACE(i);
      if (round % 2 == 1 && tasks[i].target < 0 && got[i].error.empty() && want[i].error.empty()) {
        // The device uses other noise, so compare the data of the token that it sampled.
        expect_kept(logits, tasks[i], got[i].token);
        SampleTask told = tasks[i];
        told.target = got[i].token;
        want[i] = sample_on_host(logits, {told})[0];
        if (tasks[i].logprobs < 0) want[i].logprobs = {};
      }
      expect_equal(got[i], want[i]);
    }
  }
}

// Sampling a whole row on the host uses other noise. The token differs, but its log-probability is the same.
TEST_F(DeviceSamplerTest, ReportsWhatItDrew) {
  constexpr int kVocab = 500;
  std::vector<float> logits(kRows * kVocab);
  for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, 2.0f)(random_);
  const SamplingParams params{.temperature = 1.0};
  std::vector<SampleTask> tasks;
  for (int i = 0; i < kRows; ++i) tasks.push_back({.row = i, .params = &params, .seed = random_(), .logprobs = 20});
  const auto got = on_device(logits, tasks);
  EXPECT_TRUE(ahead_);
  for (int i = 0; i < kRows; ++i) tasks[i].target = got[i].token;
  const auto want = sample_on_host(logits, tasks);
  for (int i = 0; i < kRows; ++i) expect_equal(got[i], want[i]);
}

// Edits of a row that two samples share.
TEST_F(DeviceSamplerTest, KnowsWhatCannotRunAhead) {
  std::vector<float> logits(kRows * 50, 0.5f);
  for (int i = 0; i < kRows; ++i) logits[static_cast<size_t>(i * 50 + 3)] = 2.0f;
  SamplingParams biased{.temperature = 0.0}, nucleus{.temperature = 1.0, .top_p = 0.9}, penalized{.temperature = 0.0};
  biased.logit_bias.emplace_back(3, -10.0f);
  penalized.presence_penalty = 1.0;
  PenaltyCounts counts;
  counts.add_output(3);
  EXPECT_EQ(on_device(logits, {{.row = 0, .params = &biased}})[0].token, 0);
  EXPECT_TRUE(ahead_);
  EXPECT_EQ(on_device(logits, {{.row = 1, .params = &penalized, .counts = &counts}})[0].token, 3);
  EXPECT_TRUE(ahead_);
  on_device(logits, {{.row = 0, .params = &nucleus}});
  EXPECT_TRUE(ahead_);
  const auto both = on_device(logits, {{.row = 2, .params = &biased}, {.row = 2, .params = &biased, .choice = 1}});
  EXPECT_FALSE(ahead_);
  EXPECT_EQ(both[0].token, 0);
  EXPECT_EQ(both[1].token, 0);
}

}  // namespace
}  // namespace sluice
