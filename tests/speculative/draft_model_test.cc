// Drafts by a model: its batches, and where drafts end. The model here continues a token with the next number.
#include "speculative/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "speculative/drafter_fixture.h"

namespace sluice::draft_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DraftModelTest : public DrafterFixture {
 protected:
  DraftModel& drafter() {
    if (!drafter_) drafter_.emplace(options_, runner());
    return *drafter_;
  }
  void complete() { DrafterFixture::complete(drafter()); }

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
