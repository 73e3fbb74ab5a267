// Drafts by layers that continue the model: their batches. The layers here continue a token with the next number.
#include "speculative/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/thread_pool.h"

namespace sluice::prediction_drafter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kVocab = 64;
constexpr int kBlock = 4;

class PredictionTest : public ::testing::Test {
 protected:
  PredictionTest()
      : pool_(1, /*pin=*/false),
        queue_(ops::select_backend("reference").open(0).make_queue(pool_)),
        arena_(1 << 20),
        context_(*queue_, arena_),
        logits_(sizeof(float) * 8 * kVocab) {
    options_.tokens = 3;
    drafter_.emplace(options_,
                     DraftModelRunner{.run = [this](const Batch& batch, const Tensor&) { return forward(batch); },
                                      .context = &context_,
                                      .vocab = kVocab,
                                      .most_rows = 8,
                                      .block_size = kBlock,
                                      .groups = {{}}});
    step_.query_start = {0};
    step_.block_table_stride = 3;
  }

  Tensor forward(const Batch& batch) {
    batches_.push_back(batch);
    Tensor logits(logits_.data(), &kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), kVocab});
    for (size_t row = 0; row < batch.sample_rows.size(); ++row) {
      float* own = logits.f32() + row * kVocab;
      std::fill_n(own, kVocab, 0.0f);
      own[(batch.tokens[static_cast<size_t>(batch.sample_rows[row])] + 1) % kVocab] = 20;
    }
    return logits;
  }

  // Adds tokens from position `first` on, and a draft behind them.
  void add(const std::vector<TokenId>& tokens, int first, int drafted, std::vector<int32_t> blocks) {
    parts_.push_back({.drafted = drafted, .first_task = static_cast<int>(tasks_.size())});
    for (int i = 0; drafted > 0 && i <= drafted; ++i) {
      tasks_.push_back({.row = static_cast<int>(tasks_.size()), .params = &params_, .end_tokens = {}, .position = i});
    }
    step_.tokens.insert(step_.tokens.end(), tokens.begin(), tokens.end());
    step_.tokens.insert(step_.tokens.end(), static_cast<size_t>(drafted), kTokenToCome);
    const int end = first + static_cast<int>(tokens.size()) + drafted;
    for (int i = first; i < end; ++i) step_.positions.push_back(i);
    step_.query_start.push_back(step_.size());
    step_.kv_len.push_back(end);
    step_.prompt_len.push_back(1);
    blocks.resize(3, -1);
    step_.block_table.insert(step_.block_table.end(), blocks.begin(), blocks.end());
  }

  void complete() {
    DraftStep step{.batch = step_, .tasks = tasks_, .parts = parts_, .sampled = {}};
    drafter_->complete(step);
  }

  SpeculativeOptions options_;
  ThreadPool pool_;
  std::unique_ptr<ops::Queue> queue_;
  Arena arena_;
  ops::Ctx context_;
  Buffer logits_;
  SamplingParams params_{.temperature = 0};
  Batch step_;
  std::vector<SampleTask> tasks_;
  std::vector<DraftPart> parts_;
  std::vector<Batch> batches_;  // that the layers computed
  std::optional<Prediction> drafter_;
};

TEST_F(PredictionTest, DraftsBeginWithTheTokenThatWasSampledLast) {
  add({20, 21, 22}, 4, 0, {2, 6});
  add({10}, 5, 2, {7, 3});
  complete();
  EXPECT_THAT(step_.tokens, ElementsAre(20, 21, 22, 10, 11, 12));
  ASSERT_THAT(batches_, SizeIs(2));
  EXPECT_THAT(batches_[0].tokens, ElementsAre(10));
  EXPECT_THAT(batches_[0].slots, ElementsAre(3 * 4 + 1));
  EXPECT_THAT(batches_[0].block_table, ElementsAre(7, 3, -1));
  EXPECT_THAT(batches_[0].kv_len, ElementsAre(6));
  EXPECT_TRUE(batches_[0].wants_hidden);
  EXPECT_THAT(batches_[1].tokens, ElementsAre(11));
  EXPECT_THAT(batches_[1].positions, ElementsAre(6));
  EXPECT_TRUE(batches_[1].wants_hidden);
}

TEST_F(PredictionTest, TokensWithoutAHiddenStateHaveNoDraft) {
  add({10}, 0, 2, {7});         // nothing is before it
  add({20, 21}, 5, 1, {2, 6});  // the hidden state before the second token is not computed yet
  complete();
  EXPECT_THAT(batches_, IsEmpty());
  EXPECT_EQ(parts_[0].drafted, 0);
  EXPECT_EQ(parts_[1].drafted, 0);
}

TEST_F(PredictionTest, AllTokensOfAStepAreComputedButTheFirstOfAText) {
  add({10}, 0, 0, {7});
  add({20, 21, 22}, 0, 0, {2});
  add({30, 31}, 5, 0, {4, 9});
  drafter_->observe(step_);
  ASSERT_THAT(batches_, SizeIs(1));
  const Batch& batch = batches_[0];
  EXPECT_THAT(batch.tokens, ElementsAre(21, 22, 30, 31));
  EXPECT_THAT(batch.positions, ElementsAre(1, 2, 5, 6));
  EXPECT_THAT(batch.slots, ElementsAre(2 * 4 + 1, 2 * 4 + 2, 9 * 4 + 1, 9 * 4 + 2));
  EXPECT_THAT(batch.query_start, ElementsAre(0, 2, 4));
  EXPECT_THAT(batch.kv_len, ElementsAre(3, 7));
  EXPECT_THAT(batch.sample_rows, IsEmpty());
  EXPECT_FALSE(batch.wants_hidden);
}

}  // namespace
}  // namespace sluice::prediction_drafter_test
