// A step that is scheduled before the tokens of the one before are known. simulation_test.cc tries it with all the
// rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/requests.h"
#include "scheduler/scheduler.h"

namespace sluice::overlap_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TokenId kEos = 99;

class OverlapTest : public ::testing::Test {
 protected:
  static SchedulerOptions options() {
    SchedulerOptions o;
    o.max_num_seqs = 8;
    o.max_num_batched_tokens = 64;
    o.max_model_len = 60;
    o.block_size = 4;
    o.blocks = 32;
    o.eos_token_ids = {kEos};
    return o;
  }

  void add(RequestId id, Request r) {
    ASSERT_TRUE(scheduler_.queue_limit().try_enter(r.n, static_cast<int64_t>(r.prompt.size())));
    scheduler_.add(id, std::move(r));
  }

  void commit(ScheduledBatch step, const std::vector<TokenId>& tokens) {
    std::vector<SampleResult> samples(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) samples[i].token = tokens[i];
    std::vector<StepResult> results = step_results(step, samples);
    scheduler_.commit(std::move(step), results);
  }

  Scheduler scheduler_{options()};
};

TEST_F(OverlapTest, UnknownTokensComeFromTheSamplesOfTheStepBefore) {
  add(1, numbered_request(3, 5));
  add(2, numbered_request(6, 5));
  ScheduledBatch first = scheduler_.next();
  EXPECT_THAT(first.batch.from_sample, IsEmpty());
  add(3, numbered_request(2, 5));
  ScheduledBatch second = scheduler_.next();
  EXPECT_THAT(second.batch.from_sample, ElementsAre(0, 1, -1, -1));
  EXPECT_THAT(second.batch.positions, ElementsAre(3, 6, 0, 1));
  commit(std::move(first), {7, 8});
  commit(std::move(second), {17, 18, 19});
  const ScheduledBatch third = scheduler_.next();
  EXPECT_THAT(third.batch.from_sample, IsEmpty());
  EXPECT_THAT(third.batch.tokens, ElementsAre(17, 18, 19));
  EXPECT_THAT(third.tasks[0].position, 2);
}

TEST_F(OverlapTest, WhatHasEndedKeepsItsBlocksUntilTheSecondStepIsDone) {
  add(1, numbered_request(4, 5));
  ScheduledBatch first = scheduler_.next(), second = scheduler_.next();
  commit(std::move(first), {kEos});
  const std::vector<SequenceEvent> events = scheduler_.drain();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish->reason, FinishReason::kStop);
  EXPECT_EQ(events[0].usage.completion_tokens, 1);
  EXPECT_GT(scheduler_.block_pool().stats().used, 0);
  EXPECT_FALSE(scheduler_.idle());
  EXPECT_TRUE(scheduler_.next().batch.empty());
  commit(std::move(second), {7});
  EXPECT_THAT(scheduler_.drain(), IsEmpty());
  EXPECT_EQ(scheduler_.block_pool().stats().used, 0);
  EXPECT_TRUE(scheduler_.idle());
}

TEST_F(OverlapTest, EndsByLengthAreKnownAhead) {
  add(1, numbered_request(4, 2));
  Request to_the_end = numbered_request(58, 2);
  to_the_end.sampling.max_tokens.reset();
  add(2, to_the_end);
  ScheduledBatch first = scheduler_.next();
  EXPECT_EQ(first.parts.size(), 2u);
  ScheduledBatch second = scheduler_.next();
  EXPECT_EQ(second.parts.size(), 2u);
  commit(std::move(first), {7, 7});
  EXPECT_TRUE(scheduler_.next().batch.empty());
  commit(std::move(second), {7, 7});
  EXPECT_TRUE(scheduler_.idle());
}

// Steps that are made of those before them, too: the last token of either is drawn, not computed.
TEST_F(OverlapTest, NothingIsComputedBeyondTheEnd) {
  add(1, numbered_request(4, 12));
  add(2, numbered_request(6, 15));
  int computed = 0;
  std::optional<ScheduledBatch> before;
  while (!scheduler_.idle()) {
    ScheduledBatch step = scheduler_.next();
    computed += step.batch.size();
    if (before) commit(std::move(*before), std::vector<TokenId>(before->tasks.size(), 7));
    before.reset();
    if (!step.batch.empty()) before = std::move(step);
  }
  EXPECT_EQ(computed, (4 + 12 - 1) + (6 + 15 - 1));
}

// Blocks are found by their tokens: one whose last token is not known yet cannot be.
TEST_F(OverlapTest, OnlyKnownTokensArePublished) {
  add(1, numbered_request(3, 9));
  ScheduledBatch first = scheduler_.next(), second = scheduler_.next();  // the second fills the block
  commit(std::move(first), {7});
  commit(std::move(second), {8});
  scheduler_.cancel(1);
  Request like_it = numbered_request(3, 1);
  like_it.prompt.insert(like_it.prompt.end(), {7, 8});
  add(2, like_it);
  EXPECT_THAT(scheduler_.next().batch.tokens, ElementsAre(8)) << "the block of 3 + 1 tokens is reused";
}

// The others go on meanwhile.
TEST_F(OverlapTest, SequencesThatForkOrScoreSitOutTheNextStep) {
  Request twice = numbered_request(3, 5, 100);
  twice.n = 2;
  Request scored = numbered_request(3, 5, 200);
  scored.sampling.prompt_logprobs = 0;
  add(1, twice);
  add(2, numbered_request(3, 5, 300));
  add(3, scored);
  ScheduledBatch first = scheduler_.next();
  ASSERT_EQ(first.parts.size(), 3u);
  EXPECT_EQ(first.parts[0].outputs, Outputs::kFork);
  EXPECT_EQ(first.parts[1].outputs, Outputs::kToken);
  EXPECT_EQ(first.parts[2].scores, 2);
  ScheduledBatch second = scheduler_.next();
  ASSERT_EQ(second.parts.size(), 1u);
  EXPECT_EQ(second.parts[0].sequence->id, 2u);
  EXPECT_THAT(second.batch.from_sample, ElementsAre(2)) << "after the two samples of the fork";
  commit(std::move(first), {7, 8, 9, 201, 202, 10});
  ScheduledBatch third = scheduler_.next();
  EXPECT_THAT(third.batch.tokens, ElementsAre(7, 8, 0, 10));
  EXPECT_THAT(third.batch.from_sample, ElementsAre(-1, -1, 0, -1));
  commit(std::move(second), {11});
  commit(std::move(third), {7, 8, 9, 10});
}

// A sequence that waits for its results must not lose its memory to one before it.
TEST_F(OverlapTest, SequencesThatAreAwaitedAreNotPreempted) {
  SchedulerOptions o = options();
  o.blocks = 3;
  o.max_model_len = 12;
  o.max_num_batched_tokens = 4;
  Scheduler tight(o);
  const auto commit_sevens = [&](ScheduledBatch step) {
    std::vector<SampleResult> samples(step.tasks.size());
    for (SampleResult& sample : samples) sample.token = 7;
    std::vector<StepResult> results = step_results(step, samples);
    tight.commit(std::move(step), results);
  };
  ASSERT_TRUE(tight.queue_limit().try_enter(1, 2));
  tight.add(1, numbered_request(2, 6, 100));
  commit_sevens(tight.next());
  Request twice = numbered_request(5, 4, 200);
  twice.n = 2;
  ASSERT_TRUE(tight.queue_limit().try_enter(1, 5));
  tight.add(2, twice);
  commit_sevens(tight.next());  // three tokens of the prompt
  ScheduledBatch fork = tight.next();
  ASSERT_EQ(fork.parts.size(), 2u);
  EXPECT_EQ(fork.parts[1].outputs, Outputs::kFork);
  EXPECT_TRUE(tight.next().batch.empty()) << "no block is free, and the only victim is awaited";
  EXPECT_EQ(tight.stats().preemptions, 0u);
  commit_sevens(std::move(fork));
  EXPECT_EQ(tight.next().parts[0].sequence->id, 1u);
  EXPECT_GT(tight.stats().preemptions, 0u);
}

TEST_F(OverlapTest, SnapshotsOfARecurrentModelAreTakenBeforeItsStateMovesOn) {
  SchedulerOptions o = options();
  o.state_slots = 16;
  Scheduler recurrent(o);
  ASSERT_TRUE(recurrent.queue_limit().try_enter(1, 8));
  recurrent.add(1, numbered_request(8, 9));
  ScheduledBatch first = recurrent.next();  // stops at the end of a block
  EXPECT_EQ(first.batch.size(), 4);
  ScheduledBatch second = recurrent.next();
  ASSERT_EQ(second.batch.state_copies.size(), 1u);
  EXPECT_EQ(second.batch.state_copies[0].from, second.batch.state_slots[0]);
  EXPECT_EQ(recurrent.states().snapshots(), 1);
}

}  // namespace
}  // namespace sluice::overlap_test
