// Cuts a slab from its beginning to its end.
#include "tensor/slab.h"

namespace sluice {

std::byte* Slab::allocate(size_t bytes) {
  const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  {
    const std::scoped_lock lock(mutex_);
    if (whole <= slab_.size() - used_) {
      std::byte* const data = slab_.data() + used_;
      used_ += whole;
      return data;
    }
  }
  return memory_.allocate(bytes);
}

void Slab::release(std::byte* data, size_t bytes) noexcept {
  if (data < slab_.data() || data >= slab_.data() + slab_.size()) memory_.release(data, bytes);
}

}  // namespace sluice
