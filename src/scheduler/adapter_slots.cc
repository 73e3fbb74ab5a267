// The least recently taken slot that is free.
#include "scheduler/adapter_slots.h"

#include <algorithm>

namespace sluice {

int AdapterSlots::take(const RequestAdapter& wanted) {
  auto found = std::ranges::find_if(
      slots_, [&](const Slot& slot) { return slot.adapter == wanted.adapter && slot.scale == wanted.scale; });
  if (found == slots_.end()) {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (slot->users == 0 && (found == slots_.end() || slot->last_taken < found->last_taken)) found = slot;
    }
    if (found == slots_.end()) return -1;
    place_(*wanted.adapter, static_cast<int>(found - slots_.begin()), wanted.scale);
    found->adapter = wanted.adapter;  // the one that was there is no longer in use
    found->scale = wanted.scale;
  }
  ++found->users;
  found->last_taken = ++takes_;
  return static_cast<int>(found - slots_.begin());
}

}  // namespace sluice
