// A batch that goes to another rank is the same there, and a damaged message is refused.
#include "engine/batch_message.h"

#include <gtest/gtest.h>

#include "sluice/error.h"

namespace sluice::batch_message_test {
namespace {

Batch some_batch() {
  Batch batch;
  int32_t next = 1;
  for (auto* list : {&batch.tokens, &batch.from_sample, &batch.positions, &batch.types, &batch.slots,
                     &batch.query_start, &batch.kv_len, &batch.prompt_len, &batch.block_table, &batch.sample_rows,
                     &batch.adapters, &batch.sample_adapters, &batch.state_slots}) {
    for (int32_t i = next % 4; i >= 0; --i) list->push_back(next++);
  }
  batch.block_table_stride = 5;
  batch.wants_hidden = true;
  batch.copies = {{7, 8}, {9, 10}};
  batch.token_copies = {{11, 12}};
  batch.state_copies = {{3, 4}};
  static const std::vector<float> kValues = {1, 2, 3, 4, 5, 6};
  batch.given = {{.row = 1, .count = 2, .values = std::span(kValues).first(4)},
                 {.row = 4, .count = 1, .values = std::span(kValues).last(2)}};
  return batch;
}

TEST(BatchMessage, IsTheSameBatchAgain) {
  const Batch batch = some_batch(), again = from_message(to_message(batch));
  EXPECT_EQ(to_message(again), to_message(batch));
  EXPECT_EQ(again.tokens, batch.tokens);
  EXPECT_EQ(again.state_slots, batch.state_slots);
  EXPECT_EQ(again.sample_rows, batch.sample_rows);
  EXPECT_EQ(again.block_table_stride, 5);
  EXPECT_TRUE(again.wants_hidden);
  ASSERT_EQ(again.copies.size(), 2u);
  EXPECT_EQ(again.copies[1].to, 10);
  ASSERT_EQ(again.token_copies.size(), 1u);
  EXPECT_EQ(again.token_copies[0].to, 12);
  EXPECT_EQ(again.state_copies[0].from, 3);
  ASSERT_EQ(again.given.size(), 2u);
  EXPECT_EQ(again.given[0].count, 2);
  EXPECT_EQ(again.given[1].row, 4);
  EXPECT_EQ(std::vector(again.given[1].values.begin(), again.given[1].values.end()), (std::vector<float>{5, 6}));
  EXPECT_TRUE(from_message(to_message(Batch{})).empty());
}

TEST(BatchMessage, RefusesWhatIsNoBatch) {
  const std::vector<std::byte> message = to_message(some_batch());
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    EXPECT_THROW(from_message(std::span(message).first(bytes)), Error) << bytes;
  }
  std::vector<std::byte> longer = message;
  longer.push_back(std::byte{0});
  EXPECT_THROW(from_message(longer), Error);
}

}  // namespace
}  // namespace sluice::batch_message_test
