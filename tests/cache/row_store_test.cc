// What the store of rows keeps where, over random saves, loads and failures that end in any order.
#include "cache/row_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

namespace sluice::row_store_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = RowTransfer::Kind;
using Transfers = std::vector<std::shared_ptr<const RowTransfer>>;

BlockHash name(int number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof number);
  return hash;
}

// Saves a row and finishes all transfers that follow.
void keep(RowStore& store, int row) {
  const std::vector<BlockId> blocks = {row};
  ASSERT_TRUE(store.save(name(row), blocks));
  for (Transfers list = store.take_transfers(); !list.empty(); list = store.take_transfers()) {
    for (const auto& transfer : list) store.finish(transfer->id);
  }
}

std::vector<bool> loads_of(RowStore& store) {
  std::vector<bool> failed;
  for (const RowStore::Load& load : store.take_loads()) failed.push_back(load.failed);
  return failed;
}

TEST(RowStore, KeepsNothingWithoutSlots) {
  RowStore store({});
  EXPECT_FALSE(store.enabled());
  EXPECT_FALSE(store.save(name(1), std::vector<BlockId>{1}));
  EXPECT_FALSE(store.has(name(1)));
  store.clear();
  EXPECT_THAT(store.take_transfers(), IsEmpty());
}

TEST(RowStore, ReturnsBlocksOnceTheyAreSaved) {
  RowStore store({.host_slots = 4});
  ASSERT_TRUE(store.save(name(1), std::vector<BlockId>{7, 8}));
  EXPECT_FALSE(store.save(name(1), std::vector<BlockId>{7, 8})) << "it is on its way";
  EXPECT_FALSE(store.has(name(1)));
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]->kind, Kind::kSave);
  EXPECT_THAT(list[0]->blocks, ElementsAre(7, 8));
  EXPECT_THAT(store.finish(list[0]->id), ElementsAre(7, 8));
  EXPECT_TRUE(store.has(name(1)));
}

TEST(RowStore, TheLeastRecentlyUsedRowGivesWay) {
  RowStore store({.host_slots = 2});
  keep(store, 1);
  keep(store, 2);
  store.touch(name(1));
  keep(store, 3);
  EXPECT_TRUE(store.has(name(1)));
  EXPECT_FALSE(store.has(name(2)));
  EXPECT_TRUE(store.has(name(3)));
}

TEST(RowStore, ARowIsNotSavedWhereAllSlotsAreInUse) {
  RowStore store({.host_slots = 1});
  ASSERT_TRUE(store.save(name(1), std::vector<BlockId>{1}));
  EXPECT_FALSE(store.save(name(2), std::vector<BlockId>{2}));
  EXPECT_EQ(store.stats().not_saved, 1u);
}

TEST(RowStore, TheFileHasWhatHostMemoryLost) {
  RowStore store({.host_slots = 1, .file_slots = 3});
  for (const int row : {1, 2, 3}) keep(store, row);
  EXPECT_EQ(store.stats().written, 3u);
  const std::vector<BlockHash> rows = {name(1), name(2)};
  store.load(rows, std::vector<BlockId>{5, 6});
  for (int reads = 0; reads < 2; ++reads) {  // there is one host slot: the second row waits for it
    const Transfers list = store.take_transfers();
    ASSERT_EQ(list.size(), 1u);
    ASSERT_EQ(list[0]->rows.size(), 1u);
    EXPECT_EQ(list[0]->rows[0].hash, rows[reads]);
    EXPECT_GE(list[0]->rows[0].file_slot, 0);
    EXPECT_THAT(store.take_loads(), IsEmpty());
    store.finish(list[0]->id);
  }
  EXPECT_THAT(loads_of(store), ElementsAre(false));
}

TEST(RowStore, ADamagedRowFailsTheLoadAndIsForgotten) {
  RowStore store({.host_slots = 2});
  keep(store, 1);
  keep(store, 2);
  const std::vector<BlockHash> rows = {name(1), name(2)};
  store.load(rows, std::vector<BlockId>{5, 6});
  const std::vector<int> failed = {1};
  store.finish(store.take_transfers().at(0)->id, failed);
  EXPECT_THAT(loads_of(store), ElementsAre(true));
  EXPECT_TRUE(store.has(name(1)));
  EXPECT_FALSE(store.has(name(2)));
}

TEST(RowStore, ClearForgetsRowsAndFailsLoads) {
  RowStore store({.host_slots = 1, .file_slots = 3});
  for (const int row : {1, 2}) keep(store, row);
  const std::vector<BlockHash> rows = {name(1), name(2)};
  store.load(rows, std::vector<BlockId>{5, 6});
  const Transfers before = store.take_transfers();
  store.clear();
  EXPECT_FALSE(store.has(name(1)) || store.has(name(2)));
  const Transfers after = store.take_transfers();
  ASSERT_EQ(after.size(), 1u);
  EXPECT_EQ(after[0]->kind, Kind::kClear);
  EXPECT_EQ(after[0]->epoch, 1u);
  for (const auto& transfer : before) store.finish(transfer->id);
  store.finish(after[0]->id);
  EXPECT_THAT(loads_of(store), ElementsAre(true));
  EXPECT_EQ(store.stats().host_rows, 0);
  EXPECT_EQ(store.stats().file_rows, 0);
}

TEST(RowStore, RowsOfAnEarlierRunAreFound) {
  RowStore store({.host_slots = 1, .file_slots = 2});
  store.restore(name(1), 1);
  store.restore(name(2), 0);
  EXPECT_TRUE(store.has(name(1)) && store.has(name(2)));
  keep(store, 3);
  EXPECT_FALSE(store.has(name(1))) << "the oldest one gives way";
  EXPECT_TRUE(store.has(name(2)) && store.has(name(3)));
}

// Slots remember their rows. Whatever happens in whatever order, a transfer finds what it expects, loads end, and no
// slot is lost.
RowSource source() { return {.host = "a", .port = 1, .id = "prompt"}; }

TEST(RowStore, RowsAreReceivedAndThenLoaded) {
  RowStore store({.host_slots = 8, .rows_per_fetch = 2});
  keep(store, 1);
  const std::vector<BlockHash> rows = {name(1), name(2), name(3), name(4)};
  const uint64_t fetch = store.receive(rows, source());
  EXPECT_NE(fetch, 0u);
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 2u) << "the first row is here";
  EXPECT_EQ(list[0]->kind, Kind::kReceive);
  EXPECT_EQ(list[0]->source->id, "prompt");
  ASSERT_EQ(list[0]->rows.size(), 2u);
  EXPECT_FALSE(store.has(name(2)));
  EXPECT_TRUE(store.comes_to_host(name(2)));
  store.finish(list[0]->id);
  EXPECT_TRUE(store.in_host(name(2)));
  EXPECT_THAT(store.take_fetches(), IsEmpty());
  store.finish(list[1]->id, std::vector<int>{0});
  EXPECT_THAT(store.take_fetches(), ElementsAre(fetch));
  EXPECT_FALSE(store.has(name(4)));
  EXPECT_EQ(store.stats().received, 2u);
  EXPECT_EQ(store.stats().not_received, 1u);
  EXPECT_EQ(store.receive(std::span(rows).first(3), source()), 0u) << "all are here";
}

TEST(RowStore, ASecondFetchWaitsForTheRowsOfTheFirst) {
  RowStore store({.host_slots = 8, .rows_per_fetch = 2});
  const std::vector<BlockHash> rows = {name(1), name(2)};
  const uint64_t first = store.receive(rows, source()), second = store.receive(rows, source());
  EXPECT_NE(second, 0u);
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 1u);
  store.finish(list[0]->id);
  EXPECT_THAT(store.take_fetches(), ElementsAre(first, second));
}

TEST(RowStore, WithoutSlotsTheRestIsNotReceived) {
  RowStore store({.host_slots = 2});
  const std::vector<BlockHash> rows = {name(1), name(2), name(3)};
  EXPECT_NE(store.receive(rows, source()), 0u);
  EXPECT_EQ(store.receive(std::vector<BlockHash>{name(9)}, source()), 0u) << "all slots are in use";
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]->rows.size(), 2u);
}

TEST(RowStore, SlotsOfRowsThatAreSentOrHeldAreInUse) {
  RowStore store({.host_slots = 2, .rows_per_transfer = 16});
  keep(store, 1);
  keep(store, 2);
  store.send(name(1), 7, 0);
  const std::optional<int> held = store.hold(name(2));
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(store.hold(name(1)).has_value()) << "half of the slots are held";
  EXPECT_FALSE(store.save(name(3), std::vector<BlockId>{3}));
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]->kind, Kind::kSend);
  EXPECT_EQ(list[0]->want, 7u);
  EXPECT_THAT(store.finish(list[0]->id), IsEmpty());
  EXPECT_EQ(store.stats().sent, 1u);
  store.release(*held);
  keep(store, 3);
  keep(store, 4);
  EXPECT_FALSE(store.has(name(1)) || store.has(name(2)));
}

TEST(RowStore, ClearRefusesWhatIsNotOnItsWay) {
  RowStore store({.host_slots = 4});
  keep(store, 1);
  store.send(name(1), 7, 0);
  const std::vector<BlockHash> rows = {name(2)};
  const uint64_t fetch = store.receive(rows, source());
  store.clear();
  const Transfers list = store.take_transfers();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]->kind, Kind::kReceive);
  EXPECT_EQ(list[1]->kind, Kind::kRefuse);
  EXPECT_EQ(list[1]->want, 7u);
  for (const auto& transfer : list) store.finish(transfer->id);
  EXPECT_THAT(store.take_fetches(), ElementsAre(fetch));
  EXPECT_FALSE(store.has(name(2))) << "it is a row of the time before";
}

TEST(RowStore, RandomTransfersFindTheirRows) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto upto = [&](int most) { return static_cast<int>(random() % static_cast<uint64_t>(most + 1)); };
    const RowStoreOptions options{
        .host_slots = 1 + upto(6), .file_slots = upto(2) * upto(10), .rows_per_transfer = 1 + upto(3)};
    RowStore store(options);
    Transfers pending;
    std::map<int, BlockHash> host, file;
    std::set<uint64_t> open;
    int ended = 0, begun = 0;
    const auto finish_one = [&] {
      const size_t which = random() % pending.size();
      const auto transfer = pending[which];
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
      std::vector<int> failed;
      for (int i = 0; i < static_cast<int>(transfer->rows.size()); ++i) {
        const RowTransfer::Row& row = transfer->rows[i];
        if (upto(20) == 0) {
          failed.push_back(i);
          continue;
        }
        if (transfer->kind == Kind::kSave) host[row.host_slot] = row.hash;
        if (transfer->kind == Kind::kWrite) file[row.file_slot] = host[row.host_slot];
        if (transfer->kind == Kind::kLoad && row.file_slot >= 0) host[row.host_slot] = file[row.file_slot];
        EXPECT_EQ(host[row.host_slot], row.hash);
      }
      store.finish(transfer->id, failed);
      for (const RowStore::Load& load : store.take_loads()) ended += static_cast<int>(open.erase(load.number));
    };
    for (int i = 0; i < 300; ++i) {
      const int row = upto(12);
      if (upto(2) > 0) store.save(name(row), std::vector<BlockId>{row});
      std::vector<BlockHash> wanted;
      std::vector<BlockId> blocks;
      for (int r = row; r < row + 3 && store.has(name(r)); ++r) wanted.push_back(name(r)), blocks.push_back(r);
      if (!wanted.empty() && upto(2) == 0) open.insert(store.load(wanted, blocks)), ++begun;
      if (upto(60) == 0) store.clear();
      for (auto& transfer : store.take_transfers()) pending.push_back(std::move(transfer));
      while (!pending.empty() && upto(3) > 0) finish_one();
    }
    for (;;) {
      for (auto& transfer : store.take_transfers()) pending.push_back(std::move(transfer));
      for (const RowStore::Load& load : store.take_loads()) ended += static_cast<int>(open.erase(load.number));
      if (pending.empty()) break;
      finish_one();
    }
    EXPECT_EQ(ended, begun);
    store.clear();
    for (auto& transfer : store.take_transfers()) store.finish(transfer->id);
    for (int slot = 0; slot < options.host_slots; ++slot) {
      EXPECT_TRUE(store.save(name(100 + slot), std::vector<BlockId>{slot})) << "a slot was lost";
    }
  }
}

}  // namespace
}  // namespace sluice::row_store_test
