// The scheduler's rules one by one; simulation_test.cc tries them together.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lora/adapter.h"
#include "scheduler/requests.h"

namespace sluice::scheduler_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TokenId kEos = 99;
constexpr TokenId kWord = 7;  // what is sampled unless a test says otherwise

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() {
    options_.max_num_seqs = 8;
    options_.max_num_batched_tokens = 64;
    options_.max_logit_rows = 64;
    options_.max_model_len = 64;
    options_.block_size = 4;
    options_.blocks = 64;
    options_.eos_token_ids = {kEos};
    options_.clock = [this] { return now_; };
  }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_.emplace(options_);
    return *scheduler_;
  }

  RequestId add(Request r) {
    EXPECT_TRUE(scheduler().queue_limit().try_enter(r.n, static_cast<int64_t>(r.prompt.size())));
    scheduler().add(next_id_, std::move(r));
    return next_id_++;
  }

  static std::vector<SampleResult> results(const ScheduledBatch& step, TokenId token = kWord) {
    std::vector<SampleResult> all(step.tasks.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].token = step.tasks[i].target >= 0 ? step.tasks[i].target : token;
      all[i].logprobs.token = {.id = all[i].token, .logprob = -1.0f, .rank = 1};
    }
    return all;
  }

  void commit(ScheduledBatch step, std::vector<SampleResult> samples) {
    std::vector<StepResult> all = step_results(step, samples);
    scheduler().commit(std::move(step), all);
  }

  // One step in which every sampled token is `token`. Returns the batch.
  Batch step(TokenId token = kWord) {
    ScheduledBatch next = scheduler().next();
    Batch batch = next.batch;
    if (!batch.empty()) commit(next, results(next, token));
    for (SequenceEvent& event : scheduler().drain()) events_.push_back(std::move(event));
    return batch;
  }

  std::vector<SequenceEvent> run_to_end() {
    while (!scheduler().idle()) step();
    return std::exchange(events_, {});
  }

  int used_blocks() { return scheduler().block_pool().stats().used; }

  std::chrono::steady_clock::time_point now_{};
  SchedulerOptions options_;
  std::optional<Scheduler> scheduler_;
  std::vector<SequenceEvent> events_;
  RequestId next_id_ = 1;
};

TEST_F(SchedulerTest, PrefillIsChunkedByTheTokenBudget) {
  options_.max_num_batched_tokens = 4;
  add(numbered_request(10, 2));
  EXPECT_THAT(step(), AllOf(Field(&Batch::tokens, ElementsAre(1000, 1001, 1002, 1003)),
                            Field(&Batch::kv_len, ElementsAre(4)), Field(&Batch::sample_rows, IsEmpty())));
  EXPECT_THAT(step().positions, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(step(), AllOf(Field(&Batch::kv_len, ElementsAre(10)), Field(&Batch::sample_rows, ElementsAre(1))));
  ASSERT_THAT(events_, SizeIs(1));
  EXPECT_THAT(events_[0].tokens, ElementsAre(kWord));
  EXPECT_THAT(step().tokens, ElementsAre(kWord));
  EXPECT_EQ(events_[1].finish->reason, FinishReason::kLength);
  EXPECT_EQ(events_[1].usage.completion_tokens, 2);
  EXPECT_TRUE(scheduler().idle());
}

TEST_F(SchedulerTest, DecodesComeBeforePrefills) {
  options_.max_num_batched_tokens = 5;
  add(numbered_request(20, 9, 1000));
  for (int i = 0; i < 3; ++i) step();
  add(numbered_request(3, 9, 2000));  // it prefills beside the last chunk, then both decode
  step();
  EXPECT_THAT(step().tokens, ElementsAre(kWord, 2000, 2001, 2002));
  add(numbered_request(20, 5, 3000));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(step().query_start, ElementsAre(0, 1, 2, 5));
}

TEST_F(SchedulerTest, APrefixIsReusedButForTheLastToken) {
  add(numbered_request(8, 1));
  run_to_end();
  add(numbered_request(8, 1));
  EXPECT_THAT(step().positions, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(events_.back().usage.cached_tokens, 4);
  add(numbered_request(9, 1));
  EXPECT_THAT(step().positions, ElementsAre(8));
  EXPECT_EQ(events_.back().usage.cached_tokens, 8);
  EXPECT_EQ(scheduler().block_pool().stats().hit_tokens, 12u);
  EXPECT_EQ(scheduler().block_pool().stats().query_tokens, 25u);
}

// Between two turns others use all blocks. The first turn's stay only if a session asks for it.
TEST_F(SchedulerTest, TheTokensOfASessionWaitForItsNextTurn) {
  options_.blocks = 24;
  options_.session_blocks = 16;
  const auto cached_after_others = [this](const std::string& session, TokenId first) {
    Request turn = numbered_request(40, 1, first);
    turn.session = session;
    turn.session_ttl = std::chrono::milliseconds(1000);
    add(turn);
    run_to_end();
    for (TokenId other = 0; other < 3; ++other) {
      add(numbered_request(48, 1, first + 1000 * (other + 1)));
      run_to_end();
    }
    add(turn);
    return run_to_end().back().usage.cached_tokens;
  };
  EXPECT_EQ(cached_after_others("", 10000), 0);
  EXPECT_EQ(cached_after_others("a", 20000), 36);
  EXPECT_EQ(scheduler().session_stats().sessions, 1);
  EXPECT_EQ(scheduler().block_pool().pinned(), 10);
  EXPECT_EQ(scheduler().next_deadline(), now_ + milliseconds(1000));
  now_ += milliseconds(999);
  add(numbered_request(4, 1));
  run_to_end();
  EXPECT_EQ(scheduler().session_stats().sessions, 1);
  now_ += milliseconds(1);
  EXPECT_TRUE(scheduler().next().batch.empty());
  EXPECT_EQ(scheduler().session_stats().expired, 1u) << "nobody needs to close a session";
  EXPECT_EQ(scheduler().block_pool().pinned(), 0);
}

TEST_F(SchedulerTest, SessionsGiveWayToRunningSequences) {
  options_.blocks = 24;
  options_.session_blocks = 24;
  for (const char* session : {"a", "b"}) {
    Request turn = numbered_request(40, 1, session[0] * 100);
    turn.session = session;
    turn.session_ttl = std::chrono::hours(1);
    add(turn);
    run_to_end();
  }
  EXPECT_EQ(scheduler().session_stats().sessions, 2);
  add(numbered_request(48, 4));
  EXPECT_EQ(run_to_end().size(), 4u);
  EXPECT_EQ(scheduler().session_stats().sessions, 1) << "the one that was used least recently is gone";
  EXPECT_EQ(scheduler().session_stats().displaced, 1u);
  scheduler().end_session("b");
  EXPECT_EQ(scheduler().block_pool().pinned(), 0);
  scheduler().reset_prefix_cache();
}

TEST_F(SchedulerTest, APrefixIsNotReusedAcrossSaltsOrForPromptLogprobsOrWhenSwitchedOff) {
  add(numbered_request(9, 1));
  run_to_end();
  Request salted = numbered_request(9, 1);
  salted.cache_salt = "tenant";
  Request scored = numbered_request(9, 1);
  scored.sampling.prompt_logprobs = 0;
  for (Request* r : {&salted, &scored}) {
    add(*r);
    EXPECT_THAT(step().tokens, SizeIs(9));
    EXPECT_EQ(events_.back().usage.cached_tokens, 0);
  }
  options_.prefix_caching = false;
  scheduler_.emplace(options_);
  for (int i = 0; i < 2; ++i) {
    add(numbered_request(9, 1));
    EXPECT_THAT(step().tokens, SizeIs(9));
  }
  EXPECT_EQ(scheduler().block_pool().stats().cached, 0);
}

TEST_F(SchedulerTest, GeneratedTokensAreReusedToo) {
  add(numbered_request(4, 5));
  run_to_end();
  Request conversation = numbered_request(4, 1);
  conversation.prompt.insert(conversation.prompt.end(), 5, kWord);
  add(conversation);
  EXPECT_THAT(step().tokens, SizeIs(1));
}

TEST_F(SchedulerTest, ChoicesShareThePromptAndCopyItsLastBlockOnce) {
  Request r = numbered_request(6, 3);
  r.n = 3;
  add(r);
  const ScheduledBatch prefill = scheduler().next();
  EXPECT_EQ(prefill.batch.sequences(), 1);
  EXPECT_THAT(prefill.batch.sample_rows, ElementsAre(5));
  ASSERT_THAT(prefill.tasks, SizeIs(3));  // one row, three samples
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(prefill.tasks[i], AllOf(Field(&SampleTask::row, 0), Field(&SampleTask::choice, i)));
  commit(prefill, results(prefill));
  EXPECT_EQ(used_blocks(), 2);
  const Batch decode = step();
  EXPECT_EQ(decode.sequences(), 3);
  EXPECT_THAT(decode.copies, SizeIs(2));  // the last writer keeps the original
  EXPECT_EQ(used_blocks(), 4);
  const auto events = run_to_end();
  EXPECT_EQ(std::ranges::count_if(events, [](const auto& e) { return e.finish != nullptr; }), 3);
  EXPECT_EQ(used_blocks(), 0);
}

// Prompts stop at ends of blocks, where their states are kept.
TEST_F(SchedulerTest, BlocksThatSlidOutOfTheWindowAreGivenBack) {
  options_.groups = {{.window = 10}};
  options_.max_num_batched_tokens = 8;
  options_.blocks = 7;  // of 4 tokens: what a step and its window need, not the 16 of the context
  add(numbered_request(50, 10));
  int most = 0;
  while (!scheduler().idle()) {
    const Batch batch = step();
    most = std::max(most, used_blocks());
    const int first_row = batch.kv_len[0] - batch.size();
    for (int position = std::max(0, first_row - 9); position < batch.kv_len[0]; ++position) {
      EXPECT_NE(batch.block_table[position / 4], kNoBlock) << "position " << position;
    }
    if (first_row >= 20) {
      EXPECT_EQ(batch.block_table[0], kNoBlock);
    }
  }
  EXPECT_LE(most, peak_blocks(60, 4, options_.groups, 8));
  EXPECT_EQ(used_blocks(), 0);
  EXPECT_EQ(run_to_end().size(), 10u);
}

TEST_F(SchedulerTest, APrefixIsReusedWhereOnlyItsWindowIsHeld) {
  options_.groups = {{.window = 6}};
  add(numbered_request(40, 1));
  run_to_end();
  add(numbered_request(40, 8));
  const Batch batch = step();
  EXPECT_EQ(batch.positions.front(), 36);
  EXPECT_EQ(batch.block_table[0], kNoBlock);
  EXPECT_EQ(used_blocks(), 4);  // the first token in sight is 31: blocks 7 to 9, and the one before
  run_to_end();
  EXPECT_EQ(used_blocks(), 0);
}

TEST_F(SchedulerTest, ARecurrentPrefixIsReusedFromTheLastSnapshot) {
  options_.state_slots = 12;
  add(numbered_request(10, 1));
  EXPECT_THAT(step().positions, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(step().positions, ElementsAre(8, 9));
  EXPECT_EQ(scheduler().states().snapshots(), 1);
  EXPECT_EQ(scheduler().states().live(), 0);
  add(numbered_request(10, 1));
  const Batch reuse = step();
  EXPECT_THAT(reuse.positions, ElementsAre(8, 9));
  ASSERT_THAT(reuse.state_copies, SizeIs(1));
  EXPECT_EQ(reuse.state_copies[0].to, reuse.state_slots[0]);
  EXPECT_EQ(events_.back().usage.cached_tokens, 8);
}

// Blocks whose states nobody kept are of no use, until a second prompt shows that they are shared.
TEST_F(SchedulerTest, ARecurrentPromptIsCutWhereItPartsFromAnother) {
  options_.state_slots = 12;
  const auto ask = [&](TokenId own) {
    Request r = numbered_request(16, 1);
    std::fill(r.prompt.begin() + 6, r.prompt.end(), own);
    add(std::move(r));
  };
  ask(1);
  run_to_end();
  ask(2);
  EXPECT_THAT(step().positions, ElementsAre(0, 1, 2, 3));
  run_to_end();
  ask(3);
  EXPECT_THAT(step().positions, ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
}

TEST_F(SchedulerTest, AConversationGoesOnFromTheStateOfItsAnswer) {
  options_.state_slots = 12;
  add(numbered_request(5, 20));
  run_to_end();
  EXPECT_EQ(scheduler().states().snapshots(), 2);  // of the prompt and the last of the answer
  Request next = numbered_request(5, 1);
  next.prompt.resize(5 + 20, kWord);
  next.prompt.push_back(1);
  add(std::move(next));
  EXPECT_THAT(step().positions, ElementsAre(24, 25));
}

TEST_F(SchedulerTest, SnapshotsGiveWayToSequences) {
  options_.state_slots = options_.max_num_seqs = 2;
  add(numbered_request(9, 1, 1000));
  run_to_end();
  EXPECT_EQ(scheduler().states().snapshots(), 1);
  add(numbered_request(9, 9, 2000));
  add(numbered_request(9, 9, 3000));
  step();
  EXPECT_EQ(scheduler().states().live(), 2);
  EXPECT_EQ(scheduler().states().snapshots(), 0);
  run_to_end();
  EXPECT_EQ(scheduler().states().live(), 0);
}

TEST_F(SchedulerTest, ChoicesEndOnTheirOwn) {
  Request r = numbered_request(4, 10);
  r.n = 2;
  const RequestId id = add(r);
  step();
  scheduler().finish(id, 0);
  EXPECT_EQ(step().sequences(), 1);
  EXPECT_EQ(scheduler().stats().running, 1);
  for (const SequenceEvent& event : run_to_end()) EXPECT_TRUE(!event.finish || event.index == 1);
}

TEST_F(SchedulerTest, TheYoungestIsPreemptedAndResumesWithItsTokens) {
  options_.blocks = 6;
  options_.max_model_len = 24;
  options_.prefix_caching = false;
  const RequestId old = add(numbered_request(8, 8, 1000));
  const RequestId young = add(numbered_request(8, 8, 2000));
  while (scheduler().stats().preemptions == 0) step();
  EXPECT_EQ(scheduler().stats().running, 1);
  EXPECT_TRUE(scheduler().requests().at(young)->choices[0]->memory.groups.empty());
  EXPECT_EQ(scheduler().requests().at(old)->choices[0]->state, SequenceState::kRunning);
  const int kept = scheduler().requests().at(young)->choices[0]->length();
  EXPECT_GT(kept, 8);
  while (scheduler().requests().contains(old)) step();
  EXPECT_THAT(step().tokens, SizeIs(kept));  // prompt and output at once
  const auto events = run_to_end();
  EXPECT_EQ(events.back().usage.completion_tokens, 8);
  EXPECT_EQ(events.back().preemptions, 1);
  EXPECT_EQ(events.front().preemptions, 0);
  EXPECT_EQ(scheduler().stats().preemptions, 1u);
}

TEST_F(SchedulerTest, WhatWaitsForItsAdaptersSlotIsDeferred) {
  options_.adapter_slots = 1;
  options_.place_adapter = [](const Adapter&, int, float) {};
  const auto one = std::make_shared<const Adapter>(), other = std::make_shared<const Adapter>();
  for (const auto& adapter : {one, other, other}) {
    EXPECT_TRUE(scheduler().queue_limit().try_enter(1, 4));
    scheduler().add(next_id_++, numbered_request(4, 3), nullptr, {.adapter = adapter});
  }
  step();
  EXPECT_EQ(scheduler().stats().running, 1);
  EXPECT_EQ(scheduler().stats().waiting, 2);
  EXPECT_EQ(scheduler().stats().deferred, 1) << "the other one waits behind it";
  run_to_end();
  EXPECT_EQ(scheduler().stats().deferred, 0);
}

TEST_F(SchedulerTest, NobodyIsAdmittedWhoseTokensDoNotFitBesideTheOthers) {
  options_.blocks = 8;
  options_.max_model_len = 32;
  options_.max_logit_rows = 4;
  Request slow = numbered_request(20, 2, 1000);  // 5 blocks, filled one by one
  slow.sampling.prompt_logprobs = 0;
  add(slow);
  add(numbered_request(16, 2, 2000));  // 4 blocks: 7 are free after the first chunk, but 4 of them are promised
  EXPECT_EQ(step().sequences(), 1);
  EXPECT_EQ(scheduler().stats().running, 1);
  run_to_end();
  EXPECT_EQ(scheduler().stats().preemptions, 0u);
}

TEST_F(SchedulerTest, CachedBlocksAPromptReusesDoNotCountAsRoomForTheRest) {
  options_.blocks = 6;
  options_.max_model_len = 24;
  add(numbered_request(8, 1, 1000));
  run_to_end();  // leaves 2 cached blocks
  add(numbered_request(12, 4, 2000));
  step();
  add(numbered_request(13, 1, 1000));  // 2 hits and 2 blocks more, but none is free
  step();
  EXPECT_EQ(scheduler().stats().running, 1);
  run_to_end();
  EXPECT_EQ(scheduler().stats().preemptions, 0u);
}

TEST_F(SchedulerTest, EveryWayToEnd) {
  const auto finish_of = [&](Request r, std::vector<TokenId> tokens) {
    add(std::move(r));
    for (const TokenId token : tokens) step(token);
    EXPECT_TRUE(scheduler().idle());
    EXPECT_TRUE(events_.back().finish);
    return events_.back().finish ? *events_.back().finish : Finish{};
  };
  EXPECT_EQ(finish_of(numbered_request(4, 9), {kWord, kEos}).reason, FinishReason::kStop);
  EXPECT_EQ(finish_of(numbered_request(4, 2), {kWord, kWord}).reason, FinishReason::kLength);
  EXPECT_EQ(finish_of(numbered_request(4, 1), {kEos}).reason,
            FinishReason::kStop);  // the token counts, not its being the last

  Request stops = numbered_request(4, 9);
  stops.sampling.stop_token_ids = {5, kEos};
  EXPECT_EQ(finish_of(stops, {kWord, 5}).stop_token, 5);
  EXPECT_EQ(finish_of(stops, {kEos}).stop_token, std::nullopt);  // as end-of-sequence
  stops.sampling.ignore_eos = true;
  EXPECT_EQ(finish_of(stops, {kEos}).stop_token, kEos);

  Request ignores = numbered_request(4, 3);
  ignores.sampling.ignore_eos = true;
  EXPECT_EQ(finish_of(ignores, {kEos, kEos, kEos}).reason, FinishReason::kLength);

  Request at_least = numbered_request(4, 9);
  at_least.sampling.min_tokens = 2;
  EXPECT_EQ(finish_of(at_least, {kEos, kEos, kEos}).reason, FinishReason::kStop);
  EXPECT_EQ(events_.back().usage.completion_tokens, 3);

  Request unlimited = numbered_request(62, 1);
  unlimited.sampling.max_tokens.reset();
  EXPECT_EQ(finish_of(unlimited, {kWord, kWord}).reason, FinishReason::kLength);  // the context is full
}

TEST_F(SchedulerTest, CancelInEveryState) {
  options_.max_num_seqs = 1;
  options_.max_num_batched_tokens = 4;
  const auto expect_abort = [&](RequestId id) {
    const auto events = scheduler().drain();
    ASSERT_THAT(events, SizeIs(1));
    EXPECT_EQ(events[0].request, id);
    EXPECT_EQ(events[0].finish->reason, FinishReason::kAbort);
  };
  const RequestId prefilling = add(numbered_request(8, 4, 1000));
  const RequestId waiting = add(numbered_request(8, 4, 2000));
  step();
  scheduler().cancel(waiting);
  expect_abort(waiting);
  EXPECT_EQ(scheduler().queue_limit().sequences(), 0);
  scheduler().cancel(prefilling);
  expect_abort(prefilling);
  EXPECT_EQ(used_blocks(), 0);

  const RequestId decoding = add(numbered_request(4, 4, 3000));
  step();
  scheduler().cancel(decoding);
  expect_abort(decoding);
  EXPECT_EQ(used_blocks(), 0);

  const RequestId in_flight = add(numbered_request(4, 4, 4000));
  ScheduledBatch next = scheduler().next();
  scheduler().cancel(in_flight);
  expect_abort(in_flight);
  EXPECT_EQ(used_blocks(), 1);  // the step may still write it
  commit(next, results(next));
  EXPECT_EQ(used_blocks(), 0);
  EXPECT_THAT(scheduler().drain(), IsEmpty());

  scheduler().cancel(in_flight);
  scheduler().cancel(12345);
  EXPECT_THAT(scheduler().drain(), IsEmpty());
  EXPECT_TRUE(scheduler().idle());
}

TEST_F(SchedulerTest, EveryChoiceOfACancelledPromptEnds) {
  options_.max_num_batched_tokens = 4;
  Request r = numbered_request(8, 4);
  r.n = 3;
  const RequestId id = add(r);
  step();
  scheduler().cancel(id);
  EXPECT_THAT(scheduler().drain(), ElementsAre(Field(&SequenceEvent::index, 0), Field(&SequenceEvent::index, 1),
                                               Field(&SequenceEvent::index, 2)));
  r.n = 8;
  add(r);
  EXPECT_FALSE(step().empty()) << "the slots of the choices are free again";
}

TEST_F(SchedulerTest, DeadlinesEndRequestsBeforeTheNextStep) {
  Request late = numbered_request(4, 50, 1000);
  late.deadline = now_ + milliseconds(10);
  add(late);
  add(numbered_request(4, 50, 2000));
  EXPECT_EQ(step().sequences(), 2);
  EXPECT_EQ(scheduler().next_deadline(), now_ + milliseconds(10));
  now_ += milliseconds(10);
  EXPECT_EQ(step().sequences(), 1);
  const auto aborted = std::ranges::find_if(events_, [](const auto& e) { return e.finish != nullptr; });
  ASSERT_NE(aborted, events_.end());
  EXPECT_EQ(aborted->finish->reason, FinishReason::kAbort);
  EXPECT_EQ(aborted->usage.completion_tokens, 1);
  EXPECT_FALSE(scheduler().next_deadline());
}

TEST_F(SchedulerTest, AFaultEndsItsChoiceOnlyAndForgetsTheCache) {
  add(numbered_request(8, 4, 1000));
  add(numbered_request(8, 4, 2000));
  ScheduledBatch next = scheduler().next();
  auto all = results(next);
  all[0].error = "not finite";
  all[0].bad_logits = true;
  commit(std::move(next), std::move(all));
  const auto events = scheduler().drain();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].finish->reason, FinishReason::kError);
  EXPECT_EQ(events[0].finish->message, "not finite");
  EXPECT_FALSE(events[1].finish);
  EXPECT_EQ(run_to_end().back().finish->reason, FinishReason::kLength);
  EXPECT_EQ(scheduler().block_pool().stats().cached, 0) << "a name outlived the fault";
}

TEST_F(SchedulerTest, PromptLogprobsAreBoundedByTheLogitRows) {
  options_.max_logit_rows = 3;
  Request r = numbered_request(8, 2);
  r.sampling.prompt_logprobs = 0;
  add(r);
  std::vector<size_t> rows;
  while (!scheduler().idle()) rows.push_back(step().sample_rows.size());
  EXPECT_THAT(rows, ElementsAre(3, 3, 2, 1));
  ASSERT_TRUE(events_[0].logprobs);
  const std::vector<TokenLogprobs>& scores = events_[0].logprobs->prompt;
  ASSERT_THAT(scores, SizeIs(8));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(scores[i].token.id, 1000 + i);
    EXPECT_EQ(scores[i].token.rank, i == 0 ? 0 : 1);
  }
  EXPECT_FALSE(events_[1].logprobs);
}

TEST_F(SchedulerTest, PriorityOrdersTheQueueUntilOneWasOvertakenTooOften) {
  options_.policy = "priority";
  options_.max_num_seqs = 1;
  options_.max_overtaken = 3;
  const auto add_with = [&](int priority, TokenId first) {
    Request r = numbered_request(2, 1, first);
    r.priority = priority;
    return add(r);
  };
  for (int i = 0; i < 5; ++i) add_with(0, 900);
  run_to_end();
  add_with(5, 500);
  for (const TokenId first : {0, 100, 200, 300, 400, 501}) add_with(-1, first);
  std::vector<TokenId> order;
  while (!scheduler().idle()) order.push_back(step().tokens[0]);
  EXPECT_THAT(order, ElementsAre(0, 100, 200, 500, 300, 400, 501));
}

TEST_F(SchedulerTest, ShortestRequestsGoFirstUntilOneWasOvertakenTooOften) {
  options_.policy = "shortest";
  options_.max_num_seqs = 1;
  options_.max_overtaken = 4;
  add(numbered_request(2, 1, 900));
  add(numbered_request(5, 1, 100));
  add(numbered_request(3, 1, 200));
  add(numbered_request(2, 3, 300));
  add(numbered_request(2, 1, 400));
  add(numbered_request(4, 1, 600));
  std::vector<TokenId> order;
  while (!scheduler().idle()) {
    const TokenId first = step().tokens[0];
    if (first % 100 == 0) order.push_back(first);
  }
  // The request of 6 tokens is passed by four; then it is served before the shorter one that came after it.
  EXPECT_THAT(order, ElementsAre(900, 400, 200, 300, 100, 600));
}

TEST_F(SchedulerTest, TheEarliestDeadlineGoesFirst) {
  options_.policy = "deadline";
  options_.max_num_seqs = 1;
  const auto add_due = [&](TokenId first, int ms) {
    Request r = numbered_request(2, 1, first);
    if (ms > 0) r.deadline = now_ + milliseconds(ms);
    add(r);
  };
  add_due(100, 0), add_due(200, 5000), add_due(300, 3000), add_due(400, 0), add_due(500, 3000), add_due(600, 4000);
  std::vector<TokenId> order;
  while (!scheduler().idle()) order.push_back(step().tokens[0]);
  EXPECT_THAT(order, ElementsAre(300, 500, 600, 200, 100, 400));
}

TEST_F(SchedulerTest, TenantsTakeTurns) {
  options_.max_num_seqs = 1;
  const auto add_from = [&](const char* tenant, TokenId first) {
    Request r = numbered_request(2, 1, first);
    r.tenant = tenant;
    add(r);
  };
  for (const TokenId first : {100, 200, 300, 400}) add_from("many", first);
  for (const TokenId first : {500, 600}) add_from("few", first);
  add_from("one", 700);
  std::vector<TokenId> order;
  while (!scheduler().idle()) order.push_back(step().tokens[0]);
  EXPECT_THAT(order, ElementsAre(100, 500, 700, 200, 600, 300, 400));
}

// A tenant whose sequence was preempted takes the next turn.
TEST_F(SchedulerTest, PreemptedSequencesComeBeforeNewOnesOfOtherTenants) {
  options_.blocks = 6;
  options_.max_model_len = 24;
  options_.prefix_caching = false;
  add(numbered_request(8, 8, 1000));
  const RequestId young = add(numbered_request(8, 8, 2000));
  for (int i = 0; i < 3; ++i) step();
  for (const TokenId first : {3000, 4000}) {
    Request other = numbered_request(8, 8, first);
    other.tenant = "other";
    add(other);
  }
  while (scheduler().stats().preemptions == 0) step();
  EXPECT_EQ(scheduler().requests().at(young)->choices[0]->state, SequenceState::kWaiting);
  while (scheduler().requests().at(young)->choices[0]->state == SequenceState::kWaiting) {
    for (const auto& [id, request] : scheduler().requests()) {
      EXPECT_TRUE(id <= young || !request->admitted) << "request " << id;
    }
    step();
  }
  run_to_end();
}

// 1000 requests of 128 choices each, as one HTTP request can bring them.
TEST_F(SchedulerTest, OneTenantDoesNotHoldOffAnother) {
  options_.max_num_seqs = 128;
  options_.max_num_batched_tokens = options_.max_logit_rows = 256;
  options_.blocks = 1024;
  options_.max_queued_sequences = 1 << 20;
  Request greedy = numbered_request(1, 12);
  greedy.n = 128;
  greedy.tenant = "greedy";
  for (int i = 0; i < 1000; ++i) add(greedy);
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(scheduler().stats().running, 128);
  Request honest = numbered_request(4, 12);
  honest.tenant = "honest";
  const RequestId id = add(honest);
  int steps = 0;
  while (!scheduler().requests().at(id)->admitted && steps < 100) step(), ++steps;
  EXPECT_LE(steps, 24) << "what ran when it came, and one more turn of the other tenant";
}

TEST_F(SchedulerTest, UnknownPoliciesAreRefusedWithTheKnownOnes) {
  options_.policy = "fastest";
  try {
    scheduler();
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "--scheduling-policy: unknown value 'fastest' (expected one of: deadline, fcfs, priority, shortest)");
  }
}

TEST_F(SchedulerTest, TheQueueIsBoundedBySequencesAndTokens) {
  QueueLimit limit(4, 10);
  EXPECT_TRUE(limit.try_enter(1, 50));  // more tokens than the limit, but alone
  EXPECT_TRUE(limit.full());
  EXPECT_FALSE(limit.try_enter(1, 1));
  limit.leave(1, 50);
  EXPECT_TRUE(limit.try_enter(128, 1));  // more sequences than the limit, but alone
  EXPECT_TRUE(limit.full());
  EXPECT_FALSE(limit.try_enter(1, 1));
  limit.leave(128, 1);
  EXPECT_TRUE(limit.try_enter(3, 6));
  EXPECT_FALSE(limit.full());
  EXPECT_FALSE(limit.try_enter(2, 1));
  EXPECT_FALSE(limit.try_enter(1, 5));
  EXPECT_TRUE(limit.try_enter(1, 4));
  EXPECT_TRUE(limit.full());
  EXPECT_FALSE(limit.try_enter(1, 0));
  limit.leave(3, 6);
  limit.leave(1, 4);
  EXPECT_EQ(limit.sequences(), 0);
  EXPECT_EQ(limit.tokens(), 0);
  EXPECT_EQ(limit.refused_by_sequences(), 3u);
  EXPECT_EQ(limit.refused_by_tokens(), 2u);
}

TEST_F(SchedulerTest, RequestsThatNeverFitAreRefused) {
  const auto error_of = [&](const Request& r) {
    try {
      check_fits(r, options_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      return e.param + " " + e.reason;
    }
    return std::string();
  };
  EXPECT_EQ(error_of(numbered_request(60, 4)), "");
  EXPECT_EQ(error_of(numbered_request(60, 5)), "max_tokens context_length_exceeded");
  EXPECT_EQ(error_of(numbered_request(60, std::numeric_limits<int>::max())), "max_tokens context_length_exceeded");
  Request open = numbered_request(64, 1);
  open.sampling.max_tokens.reset();
  open.prompt_param = "messages";
  EXPECT_EQ(error_of(open), "messages context_length_exceeded");
  EXPECT_EQ(error_of(numbered_request(0, 1)), "prompt invalid_value");
  EXPECT_EQ(error_of(numbered_request(4, 0)), "max_tokens integer_below_min_value");
  Request many = numbered_request(4, 1);
  many.n = 9;
  EXPECT_EQ(error_of(many), "n integer_above_max_value");
  many.n = 0;
  EXPECT_EQ(error_of(many), "n integer_below_min_value");
}

TEST_F(SchedulerTest, SeedsComeFromTheRequestOrItsArrival) {
  options_.seed = 42;
  add(numbered_request(2, 1));
  Request seeded = numbered_request(2, 1);
  seeded.sampling.seed = -3;
  add(seeded);
  const ScheduledBatch next = scheduler().next();
  EXPECT_EQ(next.tasks[0].seed, derive_seed(42, 0));
  EXPECT_EQ(next.tasks[1].seed, static_cast<uint64_t>(-3));
  commit(next, results(next));
}

}  // namespace
}  // namespace sluice::scheduler_test
