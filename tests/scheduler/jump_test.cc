// Forced tokens: when they are taken, how they are computed, and what becomes of the steps that are in flight then.
// simulation_test.cc tries them with all the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/requests.h"
#include "scheduler/scheduler.h"

namespace sluice::jump_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr TokenId kEos = 99, kFree = -1;

// A text whose tokens are given, but for those that are free.
class Script final : public Constraint {
 public:
  explicit Script(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}

  std::unique_ptr<Constraint> copy() const override { return std::make_unique<Script>(*this); }
  void fill_mask(std::span<uint32_t> words) const override { std::ranges::fill(words, ~0u); }
  bool accept(TokenId token) override {
    if (ended() || (tokens_[at_] != kFree && tokens_[at_] != token)) return false;
    ++at_;
    return true;
  }
  bool ended() const override { return at_ == tokens_.size(); }
  void forced(std::span<const TokenId>, int most, std::vector<TokenId>& next) const override {
    for (size_t i = at_; i < tokens_.size() && tokens_[i] != kFree && most > 0; ++i, --most) next.push_back(tokens_[i]);
  }

 private:
  std::vector<TokenId> tokens_;
  size_t at_ = 0;
};

class JumpTest : public ::testing::Test {
 protected:
  JumpTest() {
    options_.max_num_seqs = 4;
    options_.max_num_batched_tokens = 16;
    options_.max_model_len = 60;
    options_.block_size = 4;
    options_.blocks = 32;
    options_.eos_token_ids = {kEos};
  }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_.emplace(options_);
    return *scheduler_;
  }
  void add(RequestId id, Request r, std::vector<TokenId> script = {}) {
    ASSERT_TRUE(scheduler().queue_limit().try_enter(r.n, static_cast<int64_t>(r.prompt.size())));
    scheduler().add(id, std::move(r), script.empty() ? nullptr : std::make_unique<Script>(std::move(script)));
  }
  void commit(ScheduledBatch step, const std::vector<TokenId>& tokens) {
    ASSERT_EQ(step.tasks.size(), tokens.size());
    std::vector<SampleResult> samples(tokens.size());
    for (size_t i = 0; i < samples.size(); ++i) samples[i].token = tokens[i];
    std::vector<StepResult> results = step_results(step, samples);
    scheduler().commit(std::move(step), results);
    events_ = scheduler().drain();
  }
  // One step, whose samples are `tokens`. Returns the batch.
  Batch step(const std::vector<TokenId>& tokens) {
    ScheduledBatch next = scheduler().next();
    Batch batch = next.batch;
    commit(std::move(next), tokens);
    return batch;
  }

  SchedulerOptions options_;
  std::optional<Scheduler> scheduler_;
  std::vector<SequenceEvent> events_;  // of the last commit
};

TEST_F(JumpTest, ForcedTokensAreComputedTogether) {
  add(1, numbered_request(5, 20), {kFree, 10, 11, 12, kFree, 13, 14});
  step({1});
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10, 11, 12));
  EXPECT_EQ(events_[0].usage.completion_tokens, 4);
  const ScheduledBatch next = scheduler().next();
  EXPECT_THAT(next.batch.tokens, ElementsAre(1, 10, 11, 12));
  EXPECT_THAT(next.batch.positions, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(next.batch.sample_rows, ElementsAre(3));
  ASSERT_THAT(next.tasks, SizeIs(1));
  EXPECT_EQ(next.tasks[0].position, 4);
  commit(next, {2});
  EXPECT_THAT(events_[0].tokens, ElementsAre(2, 13, 14));
  ASSERT_TRUE(events_[0].finish);
  EXPECT_EQ(events_[0].finish->reason, FinishReason::kStop);
  EXPECT_EQ(scheduler().stats().forced_tokens, 5);
  EXPECT_EQ(scheduler().stats().generated_tokens, 7);
  EXPECT_TRUE(scheduler().idle());
  EXPECT_EQ(scheduler().block_pool().stats().used, 0);
}

// The step in flight computes the sampled token. It samples the first forced one in vain.
TEST_F(JumpTest, TheSampleOfAStepInFlightIsDropped) {
  add(1, numbered_request(5, 20), {kFree, 10, 11, 12, kFree, kFree});
  add(2, numbered_request(3, 20, 500));
  const ScheduledBatch prefill = scheduler().next(), ahead = scheduler().next();
  EXPECT_THAT(ahead.batch.from_sample, ElementsAre(0, 1));
  commit(prefill, {1, 70});
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10, 11, 12));
  const ScheduledBatch jump = scheduler().next();
  EXPECT_THAT(jump.batch.tokens, ElementsAre(0, 10, 11, 12)) << "the other's token first, which is not known";
  EXPECT_THAT(jump.batch.from_sample, ElementsAre(1, -1, -1, -1));
  EXPECT_THAT(jump.batch.positions, ElementsAre(4, 6, 7, 8));
  commit(ahead, {55, 71});
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_EQ(events_[0].request, 2u);
  commit(jump, {72, 2});
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_THAT(events_[1].tokens, ElementsAre(2));
  EXPECT_EQ(events_[1].usage.completion_tokens, 5);
}

// Whatever is wrong with a sample that nobody needs.
TEST_F(JumpTest, AnErrorOfADroppedSampleEndsNothing) {
  add(1, numbered_request(5, 20), {kFree, 10, 11, kFree, kFree});
  const ScheduledBatch prefill = scheduler().next();
  ScheduledBatch ahead = scheduler().next();
  commit(prefill, {1});
  std::vector<SampleResult> samples(1);
  samples[0].error = kAllMasked;
  std::vector<StepResult> results = step_results(ahead, samples);
  scheduler().commit(std::move(ahead), results);
  EXPECT_THAT(scheduler().drain(), SizeIs(0));
  EXPECT_THAT(step({2}).tokens, ElementsAre(10, 11));
}

// The next step is then one that decodes, and is made from the one before in place.
TEST_F(JumpTest, OneForcedTokenIsTakenFromTheStepInFlight) {
  add(1, numbered_request(5, 20), {kFree, kFree, 10, kFree, kFree});
  const ScheduledBatch prefill = scheduler().next(), second = scheduler().next();
  commit(prefill, {1});
  const ScheduledBatch third = scheduler().next();
  commit(second, {2});
  EXPECT_THAT(events_[0].tokens, ElementsAre(2, 10));
  const ScheduledBatch fourth = scheduler().next();
  EXPECT_THAT(fourth.batch.tokens, ElementsAre(10));
  EXPECT_THAT(fourth.batch.positions, ElementsAre(7));
  EXPECT_TRUE(fourth.batch.from_sample.empty());
  EXPECT_EQ(fourth.tasks[0].position, 3);
  commit(third, {55});
  EXPECT_THAT(events_, SizeIs(0));
  commit(fourth, {3});
  EXPECT_THAT(events_[0].tokens, ElementsAre(3));
}

TEST_F(JumpTest, MaxTokensCutsTheForcedText) {
  add(1, numbered_request(5, 3), {kFree, 10, 11, 12, 13});
  step({1});
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10, 11));
  ASSERT_TRUE(events_[0].finish);
  EXPECT_EQ(events_[0].finish->reason, FinishReason::kLength);
}

TEST_F(JumpTest, TheContextCutsTheForcedText) {
  options_.max_model_len = 8;
  Request r = numbered_request(5, 3);
  r.sampling.max_tokens.reset();
  add(1, r, {kFree, 10, 11, 12, 13});
  step({1});
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10, 11));
  EXPECT_EQ(events_[0].finish->reason, FinishReason::kLength);
}

// The sampler decides about end tokens, by min_tokens for example.
TEST_F(JumpTest, AStopTokenIsSampled) {
  Request r = numbered_request(5, 20);
  r.sampling.stop_token_ids = {11};
  add(1, r, {kFree, 10, 11, 12, kFree});
  step({1});
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10));
  EXPECT_FALSE(events_[0].finish);
  step({11});
  EXPECT_EQ(events_[0].finish->stop_token, 11);
}

TEST_F(JumpTest, RequestsThatLookAtTokensDoNotJump) {
  std::vector<Request> requests(4, numbered_request(3, 20));
  requests[0].sampling.logprobs = 0;
  requests[1].sampling.logit_bias = {{10, 1.0f}};
  requests[2].sampling.allowed_token_ids = std::vector<TokenId>{1, 10};
  requests[3].sampling.prompt_logprobs = 0;  // says nothing of the answer
  for (size_t i = 0; i < requests.size(); ++i) {
    add(i + 1, requests[i], {kFree, 10, 11, kFree});
    ScheduledBatch next = scheduler().next();
    std::vector<SampleResult> samples(next.tasks.size());
    samples.back().token = 1;
    std::vector<StepResult> results = step_results(next, samples);
    scheduler().commit(std::move(next), results);
    EXPECT_THAT(scheduler().drain()[0].tokens, SizeIs(i == 3 ? 3 : 1)) << i;
    scheduler().cancel(i + 1);
    scheduler().drain();
  }
}

TEST_F(JumpTest, CanBeTurnedOff) {
  options_.jump_ahead = false;
  add(1, numbered_request(5, 20), {kFree, 10, 11, kFree});
  step({1});
  EXPECT_THAT(events_[0].tokens, ElementsAre(1));
}

TEST_F(JumpTest, AStepTakesAsMuchAsItsBudgetAllows) {
  options_.max_num_batched_tokens = 4;
  add(1, numbered_request(3, 40), {kFree, 10, 11, 12, 13, 14, 15, kFree, kFree});
  step({1});
  EXPECT_THAT(step({}).tokens, ElementsAre(1, 10, 11, 12));
  EXPECT_THAT(step({2}).tokens, ElementsAre(13, 14, 15));
  EXPECT_THAT(events_[0].tokens, ElementsAre(2));
}

// A running sequence that jumped goes on before prompts are computed, and after those that decode.
TEST_F(JumpTest, ComesBetweenDecodesAndPrompts) {
  options_.max_num_batched_tokens = 8;
  options_.policy = "priority";
  Request prompt = numbered_request(30, 5, 3000), decoding = numbered_request(2, 20, 500);
  prompt.priority = -1;
  add(1, numbered_request(3, 40), {kFree, 10, 11, 12, 13, kFree, kFree});
  add(2, decoding);
  step({1, 70});
  add(3, prompt);
  EXPECT_THAT(step({71, 2}).tokens, ElementsAre(70, 1, 10, 11, 12, 13, 3000, 3001));
}

TEST_F(JumpTest, EveryChoiceJumps) {
  Request r = numbered_request(6, 20);
  r.n = 2;
  add(1, r, {kFree, 10, 11, kFree, kFree});
  step({1, 2});
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_THAT(events_[0].tokens, ElementsAre(1, 10, 11));
  EXPECT_THAT(events_[1].tokens, ElementsAre(2, 10, 11));
  EXPECT_THAT(step({3, 4}).tokens, ElementsAre(1, 10, 11, 2, 10, 11));
}

TEST_F(JumpTest, PenaltiesCountForcedTokens) {
  Request r = numbered_request(2, 20);
  r.sampling.presence_penalty = 1;
  add(1, r, {kFree, 10, 10, kFree, kFree});
  step({1});
  const ScheduledBatch next = scheduler().next();
  std::vector<std::pair<TokenId, int>> counts;
  for (const auto& entry : next.tasks[0].counts->entries()) counts.emplace_back(entry.token, entry.output);
  EXPECT_THAT(counts, ElementsAre(std::pair(1000, 0), std::pair(1001, 0), std::pair(1, 1), std::pair(10, 2)));
  commit(next, {2});
}

TEST_F(JumpTest, ForcedTokensAreFoundInThePrefixCache) {
  add(1, numbered_request(3, 20), {kFree, 10, 11, 12, 13, kFree, kFree});
  step({1});
  step({2});
  scheduler().cancel(1);
  Request same = numbered_request(3, 5);
  same.prompt.insert(same.prompt.end(), {1, 10, 11, 12, 13, 2});
  add(2, same);
  EXPECT_THAT(step({7}).tokens, ElementsAre(2));
}

// Blocks run out after a jump: the sequence behind is recomputed, with its forced tokens.
TEST_F(JumpTest, APreemptedSequenceKeepsItsForcedTokens) {
  options_.max_model_len = 24;
  options_.blocks = 6;
  options_.prefix_caching = false;
  options_.max_num_batched_tokens = 24;
  add(1, numbered_request(7, 17));
  add(2, numbered_request(7, 17, 500), {kFree, 10, 11, 12, 13, kFree, kFree, kFree});
  step({1, 2});
  EXPECT_THAT(events_[1].tokens, ElementsAre(2, 10, 11, 12, 13));
  while (scheduler().stats().preemptions == 0) {
    ScheduledBatch next = scheduler().next();
    const std::vector<TokenId> samples(next.tasks.size(), 20);
    ASSERT_FALSE(samples.empty());
    commit(std::move(next), samples);
  }
  const int generated = static_cast<int>(scheduler().requests().at(2)->choices[0]->tokens.size());
  EXPECT_GE(generated, 12);
  scheduler().cancel(1);
  scheduler().drain();
  EXPECT_THAT(step({3}).tokens, SizeIs(generated)) << "prompt, forced and sampled tokens";
}

}  // namespace
}  // namespace sluice::jump_test
