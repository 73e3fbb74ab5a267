// The least recently taken slot that is free.
#include "scheduler/adapter_slots.h"

#include <algorithm>

namespace sluice {

int AdapterSlots::take(const std::shared_ptr<const Adapter>& adapter) {
  auto found = std::ranges::find(slots_, adapter, &Slot::adapter);
  if (found == slots_.end()) {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      if (slot->users == 0 && (found == slots_.end() || slot->last_taken < found->last_taken)) found = slot;
    }
    if (found == slots_.end()) return -1;
    place_(*adapter, static_cast<int>(found - slots_.begin()));
    found->adapter = adapter;  // the one that was there is no longer in use
  }
  ++found->users;
  found->last_taken = ++takes_;
  return static_cast<int>(found - slots_.begin());
}

}  // namespace sluice
