// Slots of recurrent state: sequences come first, snapshots go in the order of their use.
#include "cache/state_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice::state_pool_test {
namespace {

TEST(StatePool, GivesEverySlotOnce) {
  StatePool pool(3);
  const std::set<StateSlot> slots{pool.take(), pool.take(), pool.take()};
  EXPECT_EQ(slots, (std::set<StateSlot>{0, 1, 2}));
  EXPECT_EQ(pool.live(), 3);
  EXPECT_EQ(pool.add_snapshot(7), kNoState);
  EXPECT_DEATH(pool.take(), "all 3 states are live");
}

TEST(StatePool, TheSnapshotUsedLongestAgoGivesWay) {
  StatePool pool(3);
  const StateSlot first = pool.add_snapshot(10);
  pool.add_snapshot(11);
  pool.add_snapshot(12);
  EXPECT_EQ(pool.use_snapshot(10), first);
  pool.take();
  EXPECT_FALSE(pool.has_snapshot(11));
  EXPECT_TRUE(pool.has_snapshot(10) && pool.has_snapshot(12));
  pool.add_snapshot(13);
  EXPECT_FALSE(pool.has_snapshot(12));
  EXPECT_EQ(pool.use_snapshot(10), first);
  EXPECT_EQ(pool.snapshots(), 2);
}

TEST(StatePool, WhatIsGivenBackIsFree) {
  StatePool pool(1);
  const StateSlot slot = pool.take();
  pool.release(slot);
  EXPECT_EQ(pool.live(), 0);
  EXPECT_EQ(pool.add_snapshot(5), slot);
  pool.forget(5);
  pool.forget(5);
  EXPECT_EQ(pool.snapshots(), 0);
  EXPECT_EQ(pool.take(), slot);
  EXPECT_DEATH(pool.release(4), "state 4 of 1");
}

}  // namespace
}  // namespace sluice::state_pool_test
