// Prompts of vectors: which rows of which step have them, and which blocks they share.
#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/small_steps.h"

namespace sluice::vectors_test {
namespace {

constexpr int kWidth = 3;

// `rows` vectors, all different from those of another `first`.
Request vector_request(int rows, int max_tokens, float first = 0.0f) {
  std::vector<float> values(static_cast<size_t>(rows) * kWidth);
  std::iota(values.begin(), values.end(), first);
  Request r;
  r.prompt.assign(static_cast<size_t>(rows), 0);
  r.prompt_vectors = std::make_shared<const PromptVectors>(kWidth, std::move(values));
  r.sampling.max_tokens = max_tokens;
  return r;
}

using VectorsTest = SmallSteps;

TEST_F(VectorsTest, GoToTheirRows) {
  add(numbered_request(2, 4));
  step();  // its prompt
  const Request request = vector_request(8, 3);
  const std::weak_ptr<const PromptVectors> kept = request.prompt_vectors;
  add(request);
  const Batch first = step();  // one token of the other sequence, then as many rows as the budget has
  ASSERT_EQ(first.given.size(), 1u);
  EXPECT_EQ(first.size(), 6);
  EXPECT_EQ(first.given[0].row, 1);
  EXPECT_EQ(first.given[0].count, 5);
  EXPECT_EQ(first.given[0].values.front(), 0.0f);
  EXPECT_EQ(first.given[0].values.size(), 5u * kWidth);
  EXPECT_EQ(first.given[0].owner, request.prompt_vectors);
  const Batch second = step();
  ASSERT_EQ(second.given.size(), 1u);
  EXPECT_EQ(second.given[0].row, 1);
  EXPECT_EQ(second.given[0].count, 3);
  EXPECT_EQ(second.given[0].values.front(), 5.0f * kWidth);
  while (!scheduler().idle()) EXPECT_TRUE(step().given.empty());
  EXPECT_EQ(kept.use_count(), 3) << "of `request` and the two batches; the scheduler needs them no more";
}

// A prompt of one row is computed in a step that looks like a decode step, and moves on in place.
TEST_F(VectorsTest, OfOneRowAreGivenOnce) {
  add(vector_request(1, 4));
  EXPECT_EQ(step().given.size(), 1u);
  while (!scheduler().idle()) EXPECT_TRUE(step().given.empty());
}

TEST_F(VectorsTest, OfAStepInFlightOutliveTheirRequest) {
  add(vector_request(3, 4));
  ScheduledBatch next = scheduler().next();
  ASSERT_EQ(next.batch.given.size(), 1u);
  scheduler().cancel(1);
  EXPECT_EQ(next.batch.given[0].owner.use_count(), 2) << "the request is kept until the step is committed";
  std::vector<SampleResult> samples(next.tasks.size());
  std::vector<StepResult> all = step_results(next, samples);
  const std::shared_ptr<const void> owner = next.batch.given[0].owner;
  scheduler().commit(std::move(next), all);
  EXPECT_TRUE(scheduler().idle());
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_F(VectorsTest, ShareBlocksOfEqualRows) {
  EXPECT_EQ(cached_tokens(vector_request(10, 4)), 0);
  EXPECT_EQ(cached_tokens(vector_request(10, 4)), 8);
  EXPECT_EQ(cached_tokens(vector_request(10, 4, 1.0f)), 0) << "other vectors";
  Request zeros;
  zeros.prompt.assign(10, 0);
  zeros.sampling.max_tokens = 4;
  EXPECT_EQ(cached_tokens(zeros), 0) << "ids";
  EXPECT_EQ(cached_tokens(vector_request(13, 4)), 8) << "the third block of the first one has tokens of its answer";
  EXPECT_EQ(cached_tokens(vector_request(13, 4)), 12);
}

TEST_F(VectorsTest, AreNotTextForPenaltiesAndSamplers) {
  Request request = vector_request(5, 4);
  request.sampling.repetition_penalty = 2;
  request.sampling.repeat_last_n = 2;
  request.sampling.no_repeat_ngram_size = 3;
  add(std::move(request));
  for (size_t answered = 0; !scheduler().idle(); ++answered) {
    ScheduledBatch next = scheduler().next();
    ASSERT_EQ(next.tasks.size(), 1u);
    const SampleTask& task = next.tasks[0];
    EXPECT_EQ(task.text().size(), answered);
    EXPECT_EQ(task.prompt_length - task.given, 0);
    for (const PenaltyCounts::Entry& entry : task.counts->entries()) {
      EXPECT_EQ(entry.token, 7);
      EXPECT_EQ(entry.all, static_cast<int>(std::min<size_t>(answered, 2)));
      EXPECT_EQ(entry.output, entry.all);
    }
    std::vector<SampleResult> samples(1);
    samples[0].token = 7;
    std::vector<StepResult> all = step_results(next, samples);
    scheduler().commit(std::move(next), all);
  }
}

TEST_F(VectorsTest, MoveWithRowsWhenDraftsBeforeThemBecomeShorter) {
  options_.max_num_batched_tokens = 16;
  options_.draft = [](const Sequence& sequence, int most, std::vector<TokenId>& draft) {
    EXPECT_EQ(sequence.given, 0) << "a draft for a prompt of vectors";
    draft.assign(static_cast<size_t>(std::min(most, 3)), -1);
  };
  add(numbered_request(2, 20));
  step();
  add(vector_request(4, 3));
  ScheduledBatch next = scheduler().next();
  ASSERT_EQ(next.batch.given.size(), 1u);
  EXPECT_EQ(next.batch.given[0].row, 4) << "behind a token and its draft";
  scheduler().shorten_drafts(next, std::vector<int>{1, 0});
  EXPECT_EQ(next.batch.given[0].row, 2);
  EXPECT_EQ(next.batch.given[0].row, next.batch.query_start[1]);
}

}  // namespace
}  // namespace sluice::vectors_test
