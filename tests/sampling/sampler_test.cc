// The sampler: comparison with the simple reference on random logits and parameters, statistics of samples, and errors.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "base/registry.h"
#include "base/thread_pool.h"
#include "sampling/reference.h"

// Parameters are designated initialisers; omitted fields have their defaults.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

namespace sluice::sampler_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::mt19937_64& random, int vocab) {
  const int kind = static_cast<int>(random() % 5);
  std::normal_distribution<float> normal(0.0f, kind == 0 ? 0.01f : kind == 1 ? 10.0f : 3.0f);
  std::vector<float> logits(vocab);
  for (float& x : logits) {
    x = normal(random);
    if (kind == 2) x = std::round(x);                    // many equal logits
    if (kind == 3 && random() % 4 == 0) x = -kInfinity;  // a model that masks
  }
  logits[random() % vocab] = 5.0f;
  return logits;
}

// Samples on a backend, by default on the best one of this machine.
std::vector<SampleResult> sample(const std::vector<float>& logits, int rows, const std::vector<SampleTask>& tasks,
                                 ThreadPool* threads = nullptr, const char* backend = "", bool* ahead = nullptr) {
  static ThreadPool one(1);
  const auto vocab = static_cast<int64_t>(logits.size()) / rows;
  std::vector<float> copy = logits;
  const Tensor view(copy.data(), &kFloat32, {rows, vocab});
  ops::Queue queue(ops::select_backend(backend).open(0), threads != nullptr ? *threads : one);
  Arena arena(1 << 16);
  ops::Ctx context{queue, arena};
  Sampler sampler(queue, rows, static_cast<int>(vocab));
  const bool whole = sampler.begin(context, view, tasks);
  if (ahead != nullptr) *ahead = whole;
  std::vector<SampleResult> results = sampler.finish(context, tasks);
  EXPECT_EQ(std::memcmp(copy.data(), logits.data(), logits.size() * sizeof(float)), 0) << "logits are as before";
  return results;
}

SampleResult sample_one(const std::vector<float>& logits, const SamplingParams& params, SampleTask task = {}) {
  task.params = &params;
  return sample(logits, 1, {task})[0];
}

struct Case {
  SamplingParams params;
  reference::History history;
  PenaltyCounts counts;
  std::vector<TokenId> end_tokens;
  SampleTask task;
};

void make_case(std::mt19937_64& random, int vocab, Case& c) {
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  const auto real = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  const auto token = [&] { return static_cast<TokenId>(random() % vocab); };
  SamplingParams& p = c.params;
  p.temperature = chance(15) ? 0.0 : chance(30) ? 1.0 : real(0.1, 2.0);
  if (chance(50)) p.top_k = chance(30) ? 1 + token() : static_cast<int>(random() % 60) - 1;
  if (chance(10)) p.top_k = vocab + 10;
  if (chance(50)) p.top_p = chance(20) ? 1e-9 : chance(20) ? 0.9999999 : real(0.01, 1.0);
  if (chance(30)) p.min_p = chance(10) ? 1.0 : std::pow(10.0, real(-6.0, 0.0));
  if (chance(20)) p.top_n_sigma = real(0.1, 3.0);
  if (chance(20)) p.repetition_penalty = real(0.5, 2.0);
  if (chance(20)) p.presence_penalty = real(-2.0, 2.0);
  if (chance(20)) p.frequency_penalty = real(-2.0, 2.0);
  if (chance(20)) {
    for (int i = 0; i < 5; ++i) p.logit_bias.emplace_back(token(), static_cast<float>(real(-100.0, 100.0)));
  }
  if (chance(15)) {
    std::vector<TokenId> allowed;
    for (int i = 0; i < 9; ++i) allowed.push_back(token());
    p.allowed_token_ids = std::move(allowed);
  }
  if (chance(20)) p.min_tokens = 3;
  for (int i = 0; i < 3; ++i) c.end_tokens.push_back(token());
  for (int i = 0; i < 20; ++i) c.history.prompt.push_back(token());
  const int position = static_cast<int>(random() % 6);
  for (int i = 0; i < position; ++i) c.history.output.push_back(token());
  c.counts.add_prompt(c.history.prompt);
  for (const TokenId id : c.history.output) c.counts.add_output(id);
  c.task = {.params = &p,
            .counts = PenaltyCounts::needed(p) ? &c.counts : nullptr,
            .end_tokens = c.end_tokens,
            .seed = random(),
            .choice = static_cast<int>(random() % 3),
            .position = position,
            .logprobs = chance(30) ? static_cast<int>(random() % 20) : -1};
}

void expect_same(const TokenLogprob& actual, const TokenLogprob& expected) {
  EXPECT_EQ(actual.id, expected.id);
  EXPECT_EQ(actual.rank, expected.rank);
  if (std::isfinite(expected.logprob)) {
    EXPECT_NEAR(actual.logprob, expected.logprob, 2e-6 * (1.0 + std::abs(expected.logprob)));
  } else {
    EXPECT_EQ(actual.logprob, expected.logprob);
  }
}

void expect_same(const TokenLogprobs& actual, const TokenLogprobs& expected) {
  expect_same(actual.token, expected.token);
  ASSERT_EQ(actual.top.size(), expected.top.size());
  for (size_t i = 0; i < actual.top.size(); ++i) expect_same(actual.top[i], expected.top[i]);
}

// Returns whether the reference distinguishes tokens that fp32 rounding may confuse.
bool clear_order(const std::vector<double>& logits) {
  std::vector<double> values = logits;
  std::ranges::sort(values);
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] != values[i - 1] && values[i] - values[i - 1] < 1e-6 * (1.0 + std::abs(values[i]))) return false;
  }
  return true;
}

TEST(Sampler, AgreesWithTheReference) {
  std::mt19937_64 random(1);
  int compared = 0, unclear = 0;
  for (int round = 0; round < 12000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int vocab = round % 10 == 0 ? 1 + round % 7 : 1 + static_cast<int>(random() % 700);
    const std::vector<float> logits = random_logits(random, vocab);
    Case c;
    make_case(random, vocab, c);
    const SampleResult result = sample_one(logits, c.params, c.task);
    const std::vector<double> processed = reference::process(logits, c.task, c.history);
    if (std::ranges::max(processed) == -INFINITY) {
      EXPECT_NE(result.error, "");
      EXPECT_FALSE(result.bad_logits);
      continue;
    }
    ASSERT_EQ(result.error, "");
    if (c.task.logprobs >= 0) expect_same(result.logprobs, reference::logprobs(logits, result.token, c.task.logprobs));
    const bool edited = c.task.counts || !c.params.logit_bias.empty();
    if (edited && !clear_order(processed)) {
      ++unclear;
      continue;
    }
    if (c.params.temperature == 0.0) {
      EXPECT_EQ(result.token, reference::sorted(processed)[0]);
      ++compared;
      continue;
    }
    const std::vector<double> probabilities = reference::distribution(processed, c.params);
    const auto expected = probabilities.empty() ? std::nullopt : reference::pick(probabilities, c.task);
    if (!expected) {
      ++unclear;
      continue;
    }
    EXPECT_EQ(result.token, *expected);
    ++compared;
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 8000);
  EXPECT_LT(unclear, 2500);
}

// Of edited logits, with their probabilities; and with the log-probabilities of the raw ones.
TEST(Sampler, ListsCandidates) {
  std::mt19937_64 random(3);
  int compared = 0, edited = 0;
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int vocab = 1 + static_cast<int>(random() % (round % 50 == 0 ? 5000 : 700));
    const std::vector<float> logits = random_logits(random, vocab);
    Case c;
    make_case(random, vocab, c);
    c.task.plain = !edits(c.params);
    c.task.candidates = 1 + static_cast<int>(random() % 64);
    const SampleResult result = sample_one(logits, c.params, c.task);
    const std::vector<double> processed = reference::process(logits, c.task, c.history);
    const std::vector<TokenId> order = reference::sorted(processed);
    const double largest = processed[static_cast<size_t>(order[0])];
    if (largest == -INFINITY) {
      EXPECT_EQ(result.error, kAllMasked);
      continue;
    }
    if (c.task.logprobs >= 0) {
      EXPECT_EQ(result.logprobs.top.size(), reference::logprobs(logits, order[0], c.task.logprobs).top.size());
    }
    if (!c.task.plain && !clear_order(processed)) continue;
    double sum = 0;
    for (const double x : processed) sum += std::exp(x - largest);
    const auto open = static_cast<size_t>(std::ranges::count_if(processed, [](double x) { return x > -INFINITY; }));
    ASSERT_EQ(result.candidates.size(), std::min(open, static_cast<size_t>(c.task.candidates)));
    for (size_t i = 0; i < result.candidates.size(); ++i) {
      const TokenCandidate& one = result.candidates[i];
      EXPECT_NEAR(one.probability, std::exp(processed[static_cast<size_t>(order[i])] - largest) / sum, 1e-5);
      expect_same(one.token, reference::logprobs(logits, order[i], 0).token);
    }
    ++compared;
    edited += c.task.plain ? 0 : 1;
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 3000);
  EXPECT_GT(edited, 1000);
}

TEST(Sampler, LargeVocabulary) {
  std::mt19937_64 random(2);
  const std::vector<float> logits = random_logits(random, 151936);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    SamplingParams params{.temperature = 0.7 + 0.01 * round};
    if (round % 2) params.top_k = round % 4 == 1 ? 50 : 5000;
    if (round % 3) params.top_p = round % 3 == 1 ? 0.9 : 0.999;
    if (round % 5 == 0) params.min_p = 0.05;
    const SampleTask task{.seed = random(), .position = round};
    const SampleResult result = sample_one(logits, params, task);
    const std::vector<double> probabilities =
        reference::distribution(std::vector<double>(logits.begin(), logits.end()), params);
    if (probabilities.empty()) continue;
    const auto expected = reference::pick(probabilities, task);
    EXPECT_EQ(result.token, expected.value_or(result.token));
  }
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  std::vector<float> logits(1000, 1.0f);
  EXPECT_EQ(sample_one(logits, {.temperature = 0.0}).token, 0);
  logits[777] = logits[778] = logits[999] = 2.0f;
  EXPECT_EQ(sample_one(logits, {.temperature = 0.0}).token, 777);
  EXPECT_EQ(sample_one(logits, {.temperature = 1e-6}).token, 777);
}

TEST(Sampler, TinyTopPIsGreedy) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const std::vector<float> logits = random_logits(random, 500);
    const TokenId best = sample_one(logits, {.temperature = 0.0}).token;
    EXPECT_EQ(sample_one(logits, {.temperature = 2.0, .top_p = 1e-12}, {.seed = random()}).token, best);
    EXPECT_EQ(sample_one(logits, {.temperature = 2.0, .top_k = 1}, {.seed = random()}).token, best);
  }
}

// Checks Pearson's chi-square of many samples against the reference's probabilities, in double precision.
void expect_distribution(const std::vector<float>& logits, const SamplingParams& params, bool by_position,
                         int samples = 40000) {
  const std::vector<double> p = reference::distribution(std::vector<double>(logits.begin(), logits.end()), params);
  ASSERT_FALSE(p.empty());
  std::vector<SampleTask> tasks;
  for (int i = 0; i < samples; ++i) {
    tasks.push_back(
        {.params = &params, .seed = by_position ? 7u : static_cast<uint64_t>(i), .position = by_position ? i : 0});
  }
  std::vector<int> counts(logits.size());
  for (const SampleResult& result : sample(logits, 1, tasks)) ++counts[result.token];
  double chi_square = 0.0;
  int cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = p[i] * samples;
    EXPECT_TRUE(p[i] > 0.0 || counts[i] == 0) << "token " << i << " was cut";
    if (expected < 5.0) continue;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++cells;
  }
  // The mean is cells - 1 and the variance twice that. The limit is five standard deviations.
  EXPECT_LT(chi_square, cells - 1 + 5.0 * std::sqrt(2.0 * cells)) << cells << " cells";
}

TEST(Sampler, SamplesFollowTheDistribution) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::vector<float> logits(100);
  for (float& x : logits) x = normal(random);
  for (const bool by_position : {true, false}) {
    expect_distribution(logits, {.temperature = 1.0}, by_position, 200'000);
    expect_distribution(logits, {.temperature = 0.6}, by_position);
    expect_distribution(logits, {.temperature = 1.3, .top_k = 20}, by_position);
    expect_distribution(logits, {.temperature = 1.0, .top_p = 0.8}, by_position);
    expect_distribution(logits, {.temperature = 1.0, .top_k = 40, .top_p = 0.7, .min_p = 0.05}, by_position);
    expect_distribution(logits, {.temperature = 1.2, .top_p = 0.95, .top_n_sigma = 1.5}, by_position);
  }
}

TEST(Sampler, ASampleDoesNotDependOnTheBatch) {
  std::mt19937_64 random(5);
  constexpr int kRows = 37, kVocab = 333;
  std::vector<float> logits;
  for (int i = 0; i < kRows; ++i) {
    const auto row = random_logits(random, kVocab);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  std::vector<Case> cases(kRows);
  std::vector<SampleTask> tasks;
  for (int i = 0; i < kRows; ++i) {
    make_case(random, kVocab, cases[i]);
    cases[i].task.row = i;
    tasks.push_back(cases[i].task);
  }
  ThreadPool one(1), three(3, false);
  std::ranges::shuffle(tasks, random);
  for (int round = 0; round < 20; ++round) {
    const auto results = sample(logits, kRows, tasks, &three);
    for (int i = 0; i < kRows; ++i) {
      const SampleResult expected = sample(logits, kRows, {tasks[i]}, &one)[0];
      EXPECT_EQ(results[i].token, expected.token);
      EXPECT_EQ(results[i].error, expected.error);
      EXPECT_EQ(results[i].logprobs.token.logprob, expected.logprobs.token.logprob);
    }
  }
}

// The scalar reference and all CPU backends give the same results.
TEST(Sampler, BackendsGiveTheSameTokens) {
  std::mt19937_64 random(8);
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    constexpr int kRows = 9;
    const int vocab = 1 + static_cast<int>(random() % 3000);
    std::vector<float> logits;
    std::vector<Case> cases(kRows);
    std::vector<SampleTask> tasks;
    for (int i = 0; i < kRows; ++i) {
      const auto row = random_logits(random, vocab);
      logits.insert(logits.end(), row.begin(), row.end());
      make_case(random, vocab, cases[i]);
      cases[i].task.row = i;
      tasks.push_back(cases[i].task);
    }
    const auto want = sample(logits, kRows, tasks, nullptr, "reference");
    for (const ops::Backend* backend : Registry<ops::Backend>::all()) {
      if (!backend->usable() || backend->name.substr(0, 4) != "cpu-") continue;
      const auto got = sample(logits, kRows, tasks, nullptr, std::string(backend->name).c_str());
      ++compared;
      for (int i = 0; i < kRows; ++i) {
        EXPECT_EQ(got[i].token, want[i].token) << backend->name << ", row " << i;
        EXPECT_EQ(got[i].error, want[i].error);
        if (tasks[i].logprobs >= 0 && want[i].error.empty()) expect_same(got[i].logprobs, want[i].logprobs);
      }
    }
  }
  EXPECT_GT(compared, 0) << "no CPU backend is usable";
}

// Tasks that share an edited row, and a list of alternatives that the op has no room for, need more than one launch.
TEST(Sampler, StepsThatAreDivided) {
  constexpr int kVocab = 2000;
  std::vector<float> logits(3 * kVocab, 0.5f);
  for (int row = 0; row < 3; ++row) logits[row * kVocab + 3] = 2.0f;
  SamplingParams plain{.temperature = 0.0}, biased{.temperature = 0.0}, allowed{.temperature = 0.0};
  biased.logit_bias.emplace_back(3, -10.0f);
  allowed.allowed_token_ids = {7, 9};
  for (const char* backend : {"reference", ""}) {
    bool ahead = false;
    const auto run = [&](const std::vector<SampleTask>& tasks) {
      return sample(logits, 3, tasks, nullptr, backend, &ahead);
    };
    const SampleTask a{.row = 0, .params = &biased}, b{.row = 1, .params = &plain}, c{.row = 2, .params = &allowed};
    auto results = run({a, b, c});
    EXPECT_TRUE(ahead);
    EXPECT_EQ(results[0].token, 0);
    EXPECT_EQ(results[1].token, 3);
    EXPECT_EQ(results[2].token, 7);
    SampleTask again = a, known = a;
    again.choice = 1;
    known.params = &plain;
    known.target = 3;
    results = run({known, a, again, b});
    EXPECT_FALSE(ahead);
    EXPECT_EQ(results[0].token, 3);
    EXPECT_EQ(results[0].logprobs.token.rank, 1);
    EXPECT_EQ(results[1].token, 0);
    EXPECT_EQ(results[2].token, 0);
    EXPECT_EQ(results[3].token, 3);
    results = run({c, c, c, b, b, b, b});  // more tasks and masks than rows
    EXPECT_EQ(results.size(), 7u);
    EXPECT_EQ(results[2].token, 7);
    EXPECT_EQ(results[6].token, 3);
    SampleTask ties = b;
    ties.logprobs = 700;  // of 1999 equal logits
    results = run({ties});
    EXPECT_FALSE(ahead);
    expect_same(results[0].logprobs,
                reference::logprobs(std::vector<float>(logits.begin() + kVocab, logits.begin() + 2 * kVocab), 3, 700));
  }
}

// A long text may have penalties on every token of the vocabulary.
TEST(Sampler, EveryTokenMayHaveAPenalty) {
  constexpr int kVocab = 100'000;
  std::vector<float> logits(kVocab, 1.0f);
  logits[500] = 1.5f;
  const SamplingParams params{.temperature = 0.0, .presence_penalty = 1.0};
  PenaltyCounts counts;
  for (TokenId id = 0; id < kVocab; ++id) {
    if (id != 77'777) counts.add_output(id);
  }
  EXPECT_EQ(sample_one(logits, params, {.counts = &counts}).token, 77'777);
}

TEST(Sampler, ChoicesAndPositionsSampleIndependently) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingParams params;
  std::set<TokenId> tokens;
  for (int choice = 0; choice < 4; ++choice) {
    for (int position = 0; position < 4; ++position) {
      tokens.insert(sample_one(logits, params, {.seed = 9, .choice = choice, .position = position}).token);
    }
  }
  EXPECT_GT(tokens.size(), 12u);
  EXPECT_NE(derive_seed(1, 0), derive_seed(1, 1));
  EXPECT_NE(derive_seed(1, 0), derive_seed(2, 0));
}

TEST(Sampler, AFaultStaysWithinItsTask) {
  constexpr int kVocab = 200;
  std::vector<float> logits(5 * kVocab, 0.0f);
  for (int row = 0; row < 5; ++row) logits[row * kVocab + 50 + row] = 9.0f;
  logits[1 * kVocab + 199] = kNaN;
  logits[2 * kVocab + 3] = kInfinity;
  std::fill_n(logits.begin() + 3 * kVocab, kVocab, -kInfinity);
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params{.temperature = temperature, .top_k = 1, .logprobs = 2};
    std::vector<SampleTask> tasks;
    for (int row = 0; row < 5; ++row) tasks.push_back({.row = row, .params = &params, .logprobs = 2});
    ThreadPool threads(2, false);
    const auto results = sample(logits, 5, tasks, &threads);
    for (const int row : {0, 4}) {
      EXPECT_EQ(results[row].error, "");
      EXPECT_EQ(results[row].token, 50 + row);
    }
    for (const int row : {1, 2, 3}) {
      EXPECT_NE(results[row].error, "");
      EXPECT_TRUE(results[row].bad_logits);
    }
  }
}

TEST(Sampler, EveryTokenMaskedIsTheRequestsFault) {
  const std::vector<float> logits(10, 0.0f);
  const SamplingParams params{.allowed_token_ids = {4}, .min_tokens = 2};
  const std::vector<TokenId> end_tokens{4, 12345};  // 12345 is outside the vocabulary
  const SampleResult masked = sample_one(logits, params, {.end_tokens = end_tokens, .position = 1});
  EXPECT_NE(masked.error, "");
  EXPECT_FALSE(masked.bad_logits);
  EXPECT_EQ(sample_one(logits, params, {.end_tokens = end_tokens, .position = 2}).token, 4);
}

TEST(Sampler, ScoresKnownTokens) {
  std::mt19937_64 random(6);
  const std::vector<float> logits = random_logits(random, 300);
  for (const TokenId target : {0, 17, 299}) {
    const SampleResult result = sample_one(logits, {.temperature = 0.0}, {.target = target, .logprobs = 7});
    EXPECT_EQ(result.token, target);
    expect_same(result.logprobs, reference::logprobs(logits, target, 7));
  }
}

TEST(Sampler, VocabularyOfOne) {
  const std::vector<float> logits{-3.0f};
  for (const double temperature : {0.0, 1.0}) {
    const SampleResult result =
        sample_one(logits, {.temperature = temperature, .top_k = 5, .top_p = 0.1, .min_p = 0.5}, {.logprobs = 3});
    EXPECT_EQ(result.token, 0);
    EXPECT_EQ(result.logprobs.token.logprob, 0.0f);
    EXPECT_EQ(result.logprobs.top.size(), 1u);
  }
}

TEST(Philox, KnownAnswers) {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PenaltyCounts, CountsLikeARescan) {
  std::mt19937_64 random(7);
  reference::History history;
  PenaltyCounts counts;
  for (int i = 0; i < 50; ++i) history.prompt.push_back(static_cast<TokenId>(random() % 40));
  counts.add_prompt(history.prompt);
  for (int step = 0; step < 200; ++step) {
    const auto token = static_cast<TokenId>(random() % 60);
    history.output.push_back(token);
    counts.add_output(token);
    std::map<TokenId, int> naive;
    for (const TokenId id : history.prompt) naive[id];
    for (const TokenId id : history.output) ++naive[id];
    std::map<TokenId, int> counted;
    for (const auto& entry : counts.entries()) counted[entry.token] += entry.output;
    ASSERT_EQ(counted, naive);
    ASSERT_EQ(counts.entries().size(), naive.size());
  }
}

TEST(PenaltyCounts, AWindowCountsItsTokensOnly) {
  std::mt19937_64 random(8);
  for (const int window : {0, 1, 7, 30}) {
    std::vector<TokenId> text;
    for (int i = 0; i < 20; ++i) text.push_back(static_cast<TokenId>(random() % 10));
    PenaltyCounts counts(window);
    counts.add_prompt(text);
    for (int step = 0; step < 60; ++step) {
      text.push_back(static_cast<TokenId>(random() % 10));
      counts.add_output(text.back());
      counts.slide(text, 20);
      std::map<TokenId, std::pair<int, int>> naive, counted;
      for (size_t i = text.size() - std::min(text.size(), static_cast<size_t>(window)); i < text.size(); ++i) {
        ++naive[text[i]].first;
        naive[text[i]].second += i >= 20 ? 1 : 0;
      }
      for (const auto& entry : counts.entries()) {
        if (entry.all > 0) counted[entry.token] = {entry.all, entry.output};
      }
      ASSERT_EQ(counted, naive) << "window " << window << ", step " << step;
    }
  }
}

// Allows one token, and waits until so many masks are being filled as `together` says.
class MeetingConstraint final : public Constraint {
 public:
  struct Meeting {
    std::mutex mutex;
    std::condition_variable wake;
    int arrived = 0, together = 1, inside = 0, most_inside = 0;
    bool all_met = true;
  };
  MeetingConstraint(Meeting& meeting, TokenId allowed, const void* group)
      : meeting_(meeting), allowed_(allowed), group_(group) {}

  std::unique_ptr<Constraint> copy() const override { return std::make_unique<MeetingConstraint>(*this); }
  void fill_mask(std::span<uint32_t> words) const override {
    std::unique_lock lock(meeting_.mutex);
    ++meeting_.arrived;
    meeting_.most_inside = std::max(meeting_.most_inside, ++meeting_.inside);
    meeting_.wake.notify_all();
    const bool met = meeting_.wake.wait_for(lock, std::chrono::seconds(20),
                                            [this] { return meeting_.arrived >= meeting_.together; });
    meeting_.all_met &= met;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    --meeting_.inside;
    std::ranges::fill(words, 0);
    words[static_cast<size_t>(allowed_) / 32] |= 1u << (allowed_ % 32);
  }
  bool accept(TokenId) override { return true; }
  bool ended() const override { return false; }
  const void* group() const override { return group_; }

 private:
  Meeting& meeting_;
  TokenId allowed_;
  const void* group_;
};

// Samples one row per constraint, and expects the token that each one allows.
void sample_constrained(const std::vector<MeetingConstraint>& constraints, ThreadPool& pool) {
  constexpr int kVocab = 70;
  const int rows = static_cast<int>(constraints.size());
  std::vector<float> logits(static_cast<size_t>(rows * kVocab), 1.0f);
  const Tensor view(logits.data(), &kFloat32, {rows, kVocab});
  ops::Queue queue(ops::select_backend("").open(0), pool);
  Arena arena(1 << 16);
  ops::Ctx context{queue, arena};
  Sampler sampler(queue, rows, kVocab, &pool);
  const SamplingParams params{.temperature = 0};
  std::vector<SampleTask> tasks;
  for (int i = 0; i < rows; ++i) tasks.push_back({.row = i, .params = &params, .constraint = &constraints[i]});
  sampler.begin(context, view, tasks);
  const std::vector<SampleResult> results = sampler.finish(context, tasks);
  for (int i = 0; i < rows; ++i) EXPECT_EQ(results[static_cast<size_t>(i)].token, i + 1);
}

// Masks of three grammars are filled at the same time: each waits until all have begun.
TEST(Sampler, MasksOfSeveralGrammarsAreFilledTogether) {
  ThreadPool pool(3, /*pin=*/false);
  MeetingConstraint::Meeting meeting;
  meeting.together = 3;
  std::vector<MeetingConstraint> constraints;
  const int groups[3] = {};
  for (int i = 0; i < 3; ++i) constraints.emplace_back(meeting, i + 1, &groups[i]);
  sample_constrained(constraints, pool);
  EXPECT_TRUE(meeting.all_met);
}

TEST(Sampler, MasksOfOneGrammarAreFilledOneByOne) {
  ThreadPool pool(4, /*pin=*/false);
  MeetingConstraint::Meeting meeting;
  std::vector<MeetingConstraint> constraints;
  const int group = 0;
  for (int i = 0; i < 20; ++i) constraints.emplace_back(meeting, i + 1, &group);
  sample_constrained(constraints, pool);
  EXPECT_EQ(meeting.arrived, 20);
  EXPECT_EQ(meeting.most_inside, 1);
}

}  // namespace
}  // namespace sluice::sampler_test
