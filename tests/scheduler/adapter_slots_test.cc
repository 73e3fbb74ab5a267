// Which adapters get a slot, and which one gives way.
#include "scheduler/adapter_slots.h"

#include <gtest/gtest.h>

#include <utility>

#include "lora/adapter.h"

namespace sluice::adapter_slots_test {
namespace {

using Placed = std::vector<std::pair<const Adapter*, int>>;

TEST(AdapterSlots, TheOneTakenLongestAgoGivesWay) {
  const auto a = std::make_shared<const Adapter>(), b = std::make_shared<const Adapter>();
  const auto c = std::make_shared<const Adapter>();
  Placed placed;
  AdapterSlots slots(2, [&](const Adapter& adapter, int slot) { placed.emplace_back(&adapter, slot); });
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
  EXPECT_EQ(placed, (Placed{{a.get(), 0}, {b.get(), 1}, {c.get(), 1}, {b.get(), 1}, {c.get(), 0}}));
}

}  // namespace
}  // namespace sluice::adapter_slots_test
