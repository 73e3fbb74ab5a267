// Slots of recurrent state: one for every running sequence, and the rest for snapshots. A snapshot is the state at the
// end of a block in the prefix cache. A recurrent layer cannot take a prefix from cached blocks alone; it goes on from
// a snapshot. Ids only: the pool never sees a state.
#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "cache/block_pool.h"

namespace sluice {

using StateSlot = int32_t;
inline constexpr StateSlot kNoState = -1;

// Owned by the engine thread; not thread-safe.
class StatePool {
 public:
  explicit StatePool(int slots);

  int slots() const { return slots_; }
  int live() const { return live_; }  // slots of sequences
  int snapshots() const { return static_cast<int>(by_block_.size()); }

  // A slot for a sequence: a free one, or the one of the least recently used snapshot. CHECKs that not all are live.
  StateSlot take();
  void release(StateSlot slot);

  // The slot for a snapshot at the end of `block`, which has none yet; kNoState when all slots are live.
  StateSlot add_snapshot(BlockId block);
  bool has_snapshot(BlockId block) const { return by_block_.contains(block); }
  // The snapshot's slot, which counts as used now. It stays valid until the next take() or add_snapshot().
  StateSlot use_snapshot(BlockId block);
  // Gives up the snapshot of a block, if it has one.
  void forget(BlockId block);

 private:
  struct Snapshot {
    BlockId block;
    StateSlot slot;
  };
  StateSlot take_slot();  // kNoState when all are live

  int slots_;
  int live_ = 0;
  std::vector<StateSlot> free_;
  std::list<Snapshot> by_use_;  // least recently used first
  std::unordered_map<BlockId, std::list<Snapshot>::iterator> by_block_;
};

}  // namespace sluice
