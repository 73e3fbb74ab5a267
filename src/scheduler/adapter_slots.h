// Which adapters are where the model can use them: as many as there are slots. Pure host code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

struct Adapter;

// The adapter of a request.
struct RequestAdapter {
  std::shared_ptr<const Adapter> adapter{};  // null: the model alone
  float scale = 1;                           // factor of what it adds
  int from = 0;                              // the first token that it changes
  // The extra key of blocks with such tokens (cache/block_pool.h), if it does not change all: blocks before are shared
  // with the model. Else the salt has it.
  std::string key{};
};

class AdapterSlots {
 public:
  // Puts an adapter into a slot, for the steps that are called later. `scale`: see RequestAdapter.
  using Place = std::function<void(const Adapter& adapter, int slot, float scale)>;
  AdapterSlots(int slots, Place place) : slots_(static_cast<size_t>(slots)), place_(std::move(place)) {}

  // Returns the slot of the adapter, which stays there until it was released as often as it was taken. The adapter that
  // was not used for longest gives way. An adapter has a slot for each scale in use. Returns -1 if all slots are taken.
  int take(const RequestAdapter& wanted);
  void share(int slot) { ++slots_[static_cast<size_t>(slot)].users; }  // takes it once more
  void release(int slot) { --slots_[static_cast<size_t>(slot)].users; }

 private:
  struct Slot {
    std::shared_ptr<const Adapter> adapter;
    float scale = 1;
    int users = 0;
    uint64_t last_taken = 0;
  };
  std::vector<Slot> slots_;
  Place place_;
  uint64_t takes_ = 0;
};

}  // namespace sluice
