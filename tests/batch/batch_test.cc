// Batches that are cut into parts: every row once, with its sequence.
#include "batch/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

namespace sluice::batch_test {
namespace {

using List = std::vector<int32_t>;

// A batch of two groups whose numbers say where they come from.
Batch make_batch(const List& lengths, const List& sampled) {
  Batch batch;
  constexpr int kStride = 3;
  batch.block_table_stride = kStride;
  batch.query_start = {0};
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t i = 0; i < lengths[s]; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(100 * s) + i);
      batch.positions.push_back(10 + i);
    }
    batch.query_start.push_back(batch.query_start.back() + lengths[s]);
    batch.kv_len.push_back(10 + lengths[s]);
    batch.prompt_len.push_back(static_cast<int32_t>(1000 + s));
    batch.state_slots.push_back(static_cast<int32_t>(7 * s));
  }
  const auto sequences = static_cast<int32_t>(lengths.size());
  for (int32_t group = 0; group < 2; ++group) {
    for (const int32_t token : batch.tokens) batch.slots.push_back(10'000 * group + token);
    for (int32_t entry = 0; entry < sequences * kStride; ++entry) batch.block_table.push_back(500 * group + entry);
  }
  batch.sample_rows = sampled;
  batch.copies = {{1, 2}};
  batch.state_copies = {{3, 4}};
  return batch;
}

// What a model sees of every row, in order.
struct Row {
  int32_t token, position, slot, second_slot, reads, prompt_len, state, block, second_block;
  bool sampled;
  bool operator==(const Row&) const = default;
};

std::vector<Row> rows_of(const std::vector<Batch>& batches) {
  std::vector<Row> rows;
  for (const Batch& batch : batches) {
    const BatchView view(batch);
    for (int s = 0; s < batch.sequences(); ++s) {
      EXPECT_LT(batch.query_start[s], batch.query_start[s + 1]) << "an empty sequence";
      for (int32_t i = batch.query_start[s]; i < batch.query_start[s + 1]; ++i) {
        const bool sampled = std::ranges::count(batch.sample_rows, i) == 1;
        const int32_t after = batch.query_start[s + 1] - i - 1;  // rows of the sequence that come later
        rows.push_back({batch.tokens[i], batch.positions[i], view.slots_of(0)[i], view.slots_of(1)[i],
                        batch.kv_len[s] - after, batch.prompt_len[s], batch.state_slots[s],
                        view.block_table_of(0)[s * batch.block_table_stride],
                        view.block_table_of(1)[s * batch.block_table_stride + 2], sampled});
      }
    }
  }
  return rows;
}

TEST(Split, KeepsEveryRow) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    List lengths(1 + random() % 6), sampled;
    int32_t rows = 0;
    for (int32_t& length : lengths) rows += length = static_cast<int32_t>(1 + random() % 9);
    for (int32_t row = 0; row < rows; ++row) {
      if (random() % 3 == 0) sampled.push_back(row);
    }
    const Batch batch = make_batch(lengths, sampled);
    const int parts = static_cast<int>(1 + random() % 5);
    for (const bool whole : {false, true}) {
      const std::vector<Batch> all = split(batch, parts, whole);
      ASSERT_EQ(rows_of(all), rows_of({batch}));
      ASSERT_LE(static_cast<int>(all.size()), parts);
      size_t sequences = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        sequences += all[i].kv_len.size();
        EXPECT_EQ(all[i].copies.size(), i == 0 ? 1 : 0);
        EXPECT_EQ(all[i].state_copies.size(), i == 0 ? 1 : 0);
      }
      EXPECT_GE(sequences, lengths.size());
      EXPECT_TRUE(!whole || sequences == lengths.size());
    }
  }
}

TEST(Split, DividesGivenRows) {
  std::vector<float> values(6 * 2);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto owner = std::make_shared<int>(0);
  for (const int parts : {1, 2, 3, 4, 10}) {
    Batch batch = make_batch({8, 2}, {7});
    batch.given = {{.row = 1, .count = 5, .values = std::span(values).first(10), .owner = owner},
                   {.row = 9, .count = 1, .values = std::span(values).last(2), .owner = owner}};
    std::vector<float> found(20, -1.0f);
    int before = 0;
    for (const Batch& part : split(batch, parts, false)) {
      for (const GivenRows& given : part.given) {
        ASSERT_EQ(given.values.size(), static_cast<size_t>(given.count) * 2);
        ASSERT_LE(given.row + given.count, part.size());
        EXPECT_EQ(given.owner, owner);
        std::ranges::copy(given.values, found.begin() + (before + given.row) * 2);
      }
      before += part.size();
    }
    const std::vector<float> expected = {-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1, -1, -1, -1, 10, 11};
    EXPECT_EQ(found, expected) << parts << " parts";
  }
}

TEST(Split, CutsLongSequences) {
  const Batch batch = make_batch({8}, {7});
  const std::vector<Batch> all = split(batch, 2, false);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kv_len, List{14});
  EXPECT_EQ(all[1].kv_len, List{18});
  EXPECT_TRUE(all[0].sample_rows.empty());
  EXPECT_EQ(all[1].sample_rows, List{3});
  EXPECT_EQ(split(batch, 2, true).size(), 1u);
}

}  // namespace
}  // namespace sluice::batch_test
