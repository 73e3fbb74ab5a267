// Slots handed out, snapshots in order of use.
#include "cache/state_pool.h"

#include "base/check.h"

namespace sluice {

StatePool::StatePool(int slots) : slots_(slots) {
  for (StateSlot slot = slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

StateSlot StatePool::take_slot() {
  if (free_.empty() && !by_use_.empty()) forget(by_use_.front().block);
  if (free_.empty()) return kNoState;
  const StateSlot slot = free_.back();
  free_.pop_back();
  return slot;
}

StateSlot StatePool::take() {
  const StateSlot slot = take_slot();
  CHECK(slot != kNoState, "all {} states are live", slots_);
  ++live_;
  return slot;
}

void StatePool::release(StateSlot slot) {
  CHECK(live_ > 0 && slot >= 0 && slot < slots_, "state {} of {}, {} live", slot, slots_, live_);
  --live_;
  free_.push_back(slot);
}

StateSlot StatePool::add_snapshot(BlockId block) {
  CHECK(!has_snapshot(block), "block {} has a snapshot", block);
  const StateSlot slot = take_slot();
  if (slot != kNoState) by_block_[block] = by_use_.insert(by_use_.end(), {.block = block, .slot = slot});
  return slot;
}

StateSlot StatePool::use_snapshot(BlockId block) {
  const auto snapshot = by_block_.at(block);
  by_use_.splice(by_use_.end(), by_use_, snapshot);
  return snapshot->slot;
}

void StatePool::forget(BlockId block) {
  const auto found = by_block_.find(block);
  if (found == by_block_.end()) return;
  free_.push_back(found->second->slot);
  by_use_.erase(found->second);
  by_block_.erase(found);
}

}  // namespace sluice
