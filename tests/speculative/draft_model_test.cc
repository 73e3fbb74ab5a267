// Drafts by a model: its batches, and where drafts end. The model here continues a token with the next number.
#include "speculative/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace sluice::draft_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kVocab = 64;
constexpr int kBlock = 4;

class DraftModelTest : public ::testing::Test {
 protected:
  DraftModelTest()
      : pool_(1, /*pin=*/false),
        queue_(ops::select_backend("reference").open(0).make_queue(pool_)),
        arena_(1 << 20),
        context_(*queue_, arena_),
        logits_(sizeof(float) * 8 * kVocab) {
    options_.tokens = 3;
  }

  DraftModel& drafter() {
    if (drafter_) return *drafter_;
    const auto run = [this](const Batch& batch, const Tensor&) { return forward(batch); };
    drafter_.emplace(options_, DraftModelRunner{.run = run,
                                                .context = &context_,
                                                .vocab = kVocab,
                                                .most_rows = 8,
                                                .block_size = kBlock,
                                                .groups = groups_});
    return *drafter_;
  }

  // The logit of the next number is `margin_` above the others.
  Tensor forward(const Batch& batch) {
    batches_.push_back(batch);
    Tensor logits(logits_.data(), &kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), kVocab});
    for (size_t row = 0; row < batch.sample_rows.size(); ++row) {
      float* own = logits.f32() + row * kVocab;
      std::fill_n(own, kVocab, 0.0f);
      own[(batch.tokens[static_cast<size_t>(batch.sample_rows[row])] + 1) % kVocab] = margin_;
    }
    return logits;
  }

  // Adds the last `rows` of `length` tokens of a sequence, of which `drafted` are drafted, with all its blocks.
  void add(const std::vector<TokenId>& tokens, int length, int drafted, std::vector<int32_t> blocks,
           TokenId unseen = -1) {
    parts_.push_back({.drafted = drafted, .first_task = static_cast<int>(tasks_.size()), .unseen = unseen});
    for (int i = 0; drafted > 0 && i <= drafted; ++i) {
      tasks_.push_back(
          {.row = static_cast<int>(tasks_.size()), .params = &params_, .end_tokens = ends_, .position = i});
    }
    step_.tokens.insert(step_.tokens.end(), tokens.begin(), tokens.end());
    for (int i = 0; i < drafted; ++i) step_.tokens.push_back(kTokenToCome);
    const int rows = static_cast<int>(tokens.size()) + drafted;
    for (int i = length - rows; i < length; ++i) step_.positions.push_back(i);
    step_.query_start.push_back(step_.size());
    step_.kv_len.push_back(length);
    step_.prompt_len.push_back(1);
    blocks.resize(4, -1);
    step_.block_table.insert(step_.block_table.end(), blocks.begin(), blocks.end());
    step_.block_table_stride = 4;
  }

  void complete() {
    DraftStep step{.batch = step_, .tasks = tasks_, .parts = parts_, .sampled = {}};
    drafter().complete(step);
  }

  SpeculativeOptions options_;
  std::vector<BlockGroup> groups_{{}};
  ThreadPool pool_;
  std::unique_ptr<ops::Queue> queue_;
  Arena arena_;
  ops::Ctx context_;
  Buffer logits_;
  float margin_ = 20;
  SamplingParams params_{.temperature = 0};
  std::vector<TokenId> ends_;
  Batch step_ = [] {
    Batch batch;
    batch.query_start = {0};
    return batch;
  }();
  std::vector<SampleTask> tasks_;
  std::vector<DraftPart> parts_;
  std::vector<Batch> batches_;  // that the draft model computed
  std::optional<DraftModel> drafter_;
};

TEST_F(DraftModelTest, PromisesAsManyTokensAsItMay) {
  std::vector<TokenId> draft;
  drafter().begin({}, 9, draft);
  EXPECT_THAT(draft, ElementsAre(kTokenToCome, kTokenToCome, kTokenToCome));
  drafter().begin({}, 2, draft);
  EXPECT_THAT(draft, SizeIs(2));
}

TEST_F(DraftModelTest, TheFirstBatchHasAllKnownTokensTheOthersTheDrafts) {
  add({10}, 9, 3, {7, 3, 5});    // position 5 is known, 6, 7 and 8 are drafted
  add({20, 21, 22}, 3, 0, {2});  // a part of a prompt
  add({30}, 6, 1, {9, 4}, 29);   // position 3 is to be caught up with
  complete();
  EXPECT_THAT(step_.tokens, ElementsAre(10, 11, 12, 13, 20, 21, 22, 30, 31));
  ASSERT_THAT(batches_, SizeIs(3));
  const Batch& first = batches_[0];
  EXPECT_THAT(first.tokens, ElementsAre(10, 20, 21, 22, 29, 30));
  EXPECT_THAT(first.positions, ElementsAre(5, 0, 1, 2, 3, 4));
  EXPECT_THAT(first.slots, ElementsAre(3 * 4 + 1, 2 * 4, 2 * 4 + 1, 2 * 4 + 2, 9 * 4 + 3, 4 * 4));
  EXPECT_THAT(first.query_start, ElementsAre(0, 1, 4, 6));
  EXPECT_THAT(first.kv_len, ElementsAre(6, 3, 5));
  EXPECT_THAT(first.sample_rows, ElementsAre(0, 5));
  EXPECT_EQ(first.block_table, step_.block_table);
  const Batch& second = batches_[1];
  EXPECT_THAT(second.tokens, ElementsAre(11));
  EXPECT_THAT(second.positions, ElementsAre(6));
  EXPECT_THAT(second.slots, ElementsAre(3 * 4 + 2));
  EXPECT_THAT(second.kv_len, ElementsAre(7));
  EXPECT_THAT(second.block_table, ElementsAre(7, 3, 5, -1));
  EXPECT_THAT(batches_[2].slots, ElementsAre(3 * 4 + 3));
  EXPECT_EQ(parts_[0].drafted, 3);
  EXPECT_EQ(parts_[2].drafted, 1);
}

TEST_F(DraftModelTest, TokensThatTheHostDoesNotKnowAreFedFromTheSample) {
  add({10}, 6, 0, {1, 2});
  add({20}, 3, 1, {3});
  step_.from_sample = {4, -1, -1};
  complete();
  EXPECT_THAT(batches_[0].from_sample, ElementsAre(4, -1));
}

TEST_F(DraftModelTest, EveryGroupOfLayersHasItsBlocks) {
  groups_.emplace_back();
  add({10}, 4, 2, {7, 3});
  step_.block_table.insert(step_.block_table.end(), {8, 6, -1, -1});
  complete();
  ASSERT_THAT(batches_, SizeIs(2));
  EXPECT_THAT(batches_[0].slots, ElementsAre(7 * 4 + 1, 8 * 4 + 1));
  EXPECT_THAT(batches_[1].block_table, ElementsAre(7, 3, -1, -1, 8, 6, -1, -1));
}

TEST_F(DraftModelTest, ADraftEndsBehindATokenThatEndsTheText) {
  ends_ = {12};
  add({10}, 5, 3, {0, 1});
  complete();
  EXPECT_THAT(batches_, SizeIs(2));
  EXPECT_EQ(parts_[0].drafted, 2);
  EXPECT_EQ(step_.tokens[2], 12);
}

TEST_F(DraftModelTest, ADraftEndsBeforeATokenThatIsTooUnlikely) {
  options_.least_probability = 0.5;
  margin_ = 2;  // e^2 / (e^2 + 63) is 0.1
  add({10}, 5, 3, {0, 1});
  complete();
  EXPECT_THAT(batches_, SizeIs(1));
  EXPECT_EQ(parts_[0].drafted, 0);
  margin_ = 20;
  parts_[0].drafted = 3;
  complete();
  EXPECT_EQ(parts_[0].drafted, 3);
}

TEST_F(DraftModelTest, ShortDraftsAreNotUsed) {
  options_.least_tokens = 3;
  ends_ = {12};
  add({10}, 5, 3, {0, 1});
  complete();
  EXPECT_EQ(parts_[0].drafted, 0);
}

TEST_F(DraftModelTest, AFaultEndsTheDraft) {
  margin_ = std::numeric_limits<float>::quiet_NaN();
  add({10}, 5, 3, {0, 1});
  complete();
  EXPECT_EQ(parts_[0].drafted, 0);
}

TEST_F(DraftModelTest, StepsWithoutDraftsAreComputedToo) {
  add({10, 11}, 2, 0, {0});
  complete();
  ASSERT_THAT(batches_, SizeIs(1));
  EXPECT_THAT(batches_[0].tokens, ElementsAre(10, 11));
  EXPECT_THAT(batches_[0].sample_rows, IsEmpty());
}

}  // namespace
}  // namespace sluice::draft_model_test
