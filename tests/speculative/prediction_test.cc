// Drafts by layers that continue the model: their batches. The layers here continue a token with the next number.
#include "speculative/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "speculative/drafter_fixture.h"

namespace sluice::prediction_drafter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PredictionTest : public DrafterFixture {
 protected:
  // Adds tokens from position `first` on, and a draft behind them.
  void add(const std::vector<TokenId>& tokens, int first, int drafted, std::vector<int32_t> blocks) {
    DrafterFixture::add(tokens, first + static_cast<int>(tokens.size()) + drafted, drafted, std::move(blocks));
  }
  void complete() { DrafterFixture::complete(drafter_); }

  Prediction drafter_{options_, runner()};
};

TEST_F(PredictionTest, DraftsBeginWithTheTokenThatWasSampledLast) {
  add({20, 21, 22}, 4, 0, {2, 6});
  add({10}, 5, 2, {7, 3});
  complete();
  EXPECT_THAT(step_.tokens, ElementsAre(20, 21, 22, 10, 11, 12));
  ASSERT_THAT(batches_, SizeIs(2));
  EXPECT_THAT(batches_[0].tokens, ElementsAre(10));
  EXPECT_THAT(batches_[0].slots, ElementsAre(3 * 4 + 1));
  EXPECT_THAT(batches_[0].block_table, ElementsAre(7, 3, -1, -1));
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
  drafter_.observe(step_, {});
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
