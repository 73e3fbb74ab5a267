// Which adapters get a slot, and which one gives way.
#include "scheduler/adapter_slots.h"

#include <gtest/gtest.h>

#include <tuple>

#include "lora/adapter.h"

namespace sluice::adapter_slots_test {
namespace {

using Placed = std::vector<std::tuple<const Adapter*, int, float>>;

RequestAdapter adapter() { return {.adapter = std::make_shared<const Adapter>()}; }

TEST(AdapterSlots, TheOneTakenLongestAgoGivesWay) {
  const RequestAdapter a = adapter(), b = adapter(), c = adapter();
  Placed placed;
  AdapterSlots slots(
      2, [&](const Adapter& adapter, int slot, float scale) { placed.emplace_back(&adapter, slot, scale); });
  EXPECT_EQ(slots.take(a), 0);
  EXPECT_EQ(slots.take(b), 1);
  EXPECT_EQ(slots.take(a), 0);  // is there already
  EXPECT_EQ(slots.take(c), -1);
  slots.release(1);
  slots.share(0);
  EXPECT_EQ(slots.take(c), 1);
  slots.release(1);
  slots.release(0);
  slots.release(0);
  EXPECT_EQ(slots.take(b), 1) << "a is held once more";
  slots.release(1);
  slots.release(0);
  EXPECT_EQ(slots.take(c), 0) << "b was taken after a";
  const Adapter *const pa = a.adapter.get(), *const pb = b.adapter.get(), *const pc = c.adapter.get();
  EXPECT_EQ(placed, (Placed{{pa, 0, 1}, {pb, 1, 1}, {pc, 1, 1}, {pb, 1, 1}, {pc, 0, 1}}));
}

TEST(AdapterSlots, EachScaleTakesOne) {
  const RequestAdapter whole = adapter();
  RequestAdapter half = whole, negative = whole;
  half.scale = 0.5f, negative.scale = -1;
  Placed placed;
  AdapterSlots slots(
      2, [&](const Adapter& adapter, int slot, float scale) { placed.emplace_back(&adapter, slot, scale); });
  EXPECT_EQ(slots.take(whole), 0);
  EXPECT_EQ(slots.take(half), 1);
  EXPECT_EQ(slots.take(half), 1);
  EXPECT_EQ(slots.take(negative), -1);
  slots.release(0);
  EXPECT_EQ(slots.take(negative), 0);
  const Adapter* const one = whole.adapter.get();
  EXPECT_EQ(placed, (Placed{{one, 0, 1}, {one, 1, 0.5f}, {one, 0, -1}}));
}

}  // namespace
}  // namespace sluice::adapter_slots_test
