// Drafted tokens: what is scheduled for them, accepted of them, and left of their memory. simulation_test.cc tries them
// with all the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/requests.h"
#include "scheduler/scheduler.h"

namespace sluice::verify_test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr TokenId kEos = 99;

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    options_.max_num_seqs = 4;
    options_.max_num_batched_tokens = 16;
    options_.max_model_len = 40;
    options_.block_size = 4;
    options_.blocks = 16;
    options_.eos_token_ids = {kEos};
    options_.draft = [this](const Sequence&, int most, std::vector<TokenId>& draft) {
      asked_.push_back(most);
      const size_t count = std::min(static_cast<size_t>(most), guess_.size());
      draft.assign(guess_.begin(), guess_.begin() + static_cast<int64_t>(count));
    };
  }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_.emplace(options_);
    return *scheduler_;
  }

  void add(RequestId id, Request r) {
    ASSERT_TRUE(scheduler().queue_limit().try_enter(r.n, static_cast<int64_t>(r.prompt.size())));
    scheduler().add(id, std::move(r));
  }

  // One step, whose samples are `tokens`. Returns the batch.
  Batch step(const std::vector<TokenId>& tokens) {
    ScheduledBatch next = scheduler().next();
    Batch batch = next.batch;
    EXPECT_EQ(next.tasks.size(), tokens.size());
    std::vector<SampleResult> samples(next.tasks.size());
    for (size_t i = 0; i < samples.size(); ++i) samples[i].token = tokens[i];
    std::vector<StepResult> results = step_results(next, samples);
    scheduler().commit(std::move(next), results);
    events_ = scheduler().drain();
    return batch;
  }

  SchedulerOptions options_;
  std::vector<TokenId> guess_;  // of every draft
  std::vector<int> asked_;      // how many tokens there was room for
  std::optional<Scheduler> scheduler_;
  std::vector<SequenceEvent> events_;  // of the last step
};

TEST_F(VerifyTest, TheAcceptedTokensAndOneMoreAreTaken) {
  guess_ = {10, 11, 12};
  add(1, numbered_request(5, 20));
  step({1});
  const ScheduledBatch next = scheduler().next();
  EXPECT_EQ(next.parts[0].outputs, Outputs::kVerify);
  EXPECT_THAT(next.batch.tokens, ElementsAre(1, 10, 11, 12));
  EXPECT_THAT(next.batch.positions, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(next.batch.sample_rows, ElementsAre(0, 1, 2, 3));
  ASSERT_THAT(next.tasks, SizeIs(4));
  EXPECT_EQ(next.tasks[3].position, 4);
  EXPECT_TRUE(scheduler().next().batch.empty()) << "what follows is not known before the results are";
  std::vector<SampleResult> samples(4);
  for (int i = 0; i < 4; ++i) samples[i].token = std::vector<TokenId>{10, 11, 5, 6}[i];
  std::vector<StepResult> results = step_results(next, samples);
  EXPECT_THAT(results[0].accepted, SizeIs(3));
  scheduler().commit(next, results);
  const auto events = scheduler().drain();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].tokens, ElementsAre(10, 11, 5));
  EXPECT_EQ(events[0].usage.completion_tokens, 4);
  EXPECT_THAT(scheduler().next().batch.positions, ElementsAre(8, 9, 10, 11)) << "the rejected token is computed over";
}

TEST_F(VerifyTest, BlocksOfRejectedTokensAreGivenBack) {
  guess_ = {10, 11, 12, 13, 14, 15};
  add(1, numbered_request(5, 30));
  step({1});
  EXPECT_EQ(scheduler().block_pool().stats().used, 2);
  step({5, 11, 12, 13, 14, 15, 16});
  EXPECT_THAT(events_[0].tokens, ElementsAre(5));
  EXPECT_EQ(scheduler().block_pool().stats().used, 2) << "6 tokens are computed";
  step({10, 11, 12, 13, 14, 15, 16});
  EXPECT_THAT(events_[0].tokens, SizeIs(7));
  EXPECT_EQ(scheduler().block_pool().stats().used, 4) << "13 tokens are computed";
}

// A prefix with rejected tokens must not be found; one with accepted tokens is.
TEST_F(VerifyTest, OnlyAcceptedTokensAreFoundAgain) {
  guess_ = {10, 11, 12};
  add(1, numbered_request(4, 20));
  step({1});
  step({10, 5, 6, 7});  // 1, 10, 5: the block of 1, 10, 11, 12 is no prefix of anything
  scheduler().cancel(1);
  scheduler().drain();
  guess_.clear();
  Request rejected = numbered_request(4, 2);
  rejected.prompt.insert(rejected.prompt.end(), {1, 10, 11, 12, 0});
  add(2, rejected);
  EXPECT_THAT(step({1}).tokens, SizeIs(5));
  scheduler().cancel(2);
  scheduler().drain();

  guess_ = {20, 21, 22};
  Request fresh = numbered_request(4, 20, 500);
  add(3, fresh);
  step({1});
  step({20, 21, 22, 23});
  scheduler().cancel(3);
  scheduler().drain();
  fresh.prompt.insert(fresh.prompt.end(), {1, 20, 21, 22, 0});
  fresh.sampling.max_tokens = 2;
  add(4, fresh);
  EXPECT_THAT(step({1}).tokens, ElementsAre(0));
}

TEST_F(VerifyTest, AnEndAmongAcceptedTokensEndsTheSequence) {
  guess_ = {10, kEos, 12};
  add(1, numbered_request(5, 20));
  step({1});
  step({10, kEos, 12, 13});
  EXPECT_THAT(events_[0].tokens, ElementsAre(10, kEos));
  EXPECT_EQ(events_[0].finish->reason, FinishReason::kStop);
  EXPECT_TRUE(scheduler().idle());
  EXPECT_EQ(scheduler().block_pool().stats().used, 0);
}

TEST_F(VerifyTest, DraftsKeepToTheEndAndToTheBudgets) {
  guess_.assign(30, 10);
  add(1, numbered_request(5, 4));
  add(2, numbered_request(5, 20));
  step({1, 1});
  step({10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10});
  // Three more tokens at most: two drafted ones. The other one has what is left of the budget of 16.
  EXPECT_THAT(asked_, ElementsAre(2, 12));
}

TEST_F(VerifyTest, DraftsPreemptNobody) {
  options_.blocks = 4;
  options_.max_model_len = 16;
  options_.prefix_caching = false;
  guess_.assign(30, 10);
  add(1, numbered_request(6, 8, 100));
  add(2, numbered_request(6, 8, 200));
  step({1, 1});
  const ScheduledBatch next = scheduler().next();
  EXPECT_EQ(next.parts.size(), 2u);
  EXPECT_THAT(next.batch.query_start, ElementsAre(0, 2, 4)) << "up to the end of the block";
  EXPECT_EQ(scheduler().stats().preemptions, 0u);
}

TEST_F(VerifyTest, SequencesWithPenaltiesAndRecurrentModelsHaveNoDrafts) {
  guess_ = {10};
  Request penalized = numbered_request(5, 20);
  penalized.sampling.presence_penalty = 0.5;
  add(1, penalized);
  step({1});
  EXPECT_EQ(scheduler().next().parts[0].outputs, Outputs::kToken);
  options_.state_slots = options_.max_num_seqs;
  scheduler_.emplace(options_);
  add(1, numbered_request(3, 20));
  step({1});
  EXPECT_EQ(scheduler().next().parts[0].outputs, Outputs::kToken);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(VerifyTest, AFaultAfterAcceptedTokensKeepsThem) {
  guess_ = {10, 11};
  add(1, numbered_request(5, 20));
  step({1});
  ScheduledBatch next = scheduler().next();
  std::vector<SampleResult> samples(3);
  samples[0].token = 10;
  samples[1].error = "fault";
  std::vector<StepResult> results = step_results(next, samples);
  scheduler().commit(std::move(next), results);
  const auto events = scheduler().drain();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_THAT(events[0].tokens, ElementsAre(10));
  EXPECT_EQ(events[0].finish->reason, FinishReason::kError);
}

}  // namespace
}  // namespace sluice::verify_test
