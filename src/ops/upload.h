// Copies of host memory that is not pinned, at the speed of the bus.
#pragma once

#include <string_view>

#include "ops/device.h"

namespace sluice::ops {

// How a kind of device does it. Backends register what they have.
struct Upload {
  std::string_view name;
  // See upload(). Returns false, having done nothing, if the queue is not one of this kind of device.
  bool (*run)(Queue& queue, std::byte* to, const std::byte* from, size_t bytes) = nullptr;
};

// Copies from host memory to that of the queue's device. Returns when `from` has been read. The queue orders the copy
// with its ops.
void upload(Queue& queue, std::byte* to, const std::byte* from, size_t bytes);

}  // namespace sluice::ops
