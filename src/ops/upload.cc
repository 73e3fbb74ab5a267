// Finds how the device uploads.
#include "ops/upload.h"

#include "base/registry.h"

namespace sluice::ops {

void upload(Queue& queue, std::byte* to, const std::byte* from, size_t bytes) {
  for (const Upload* kind : Registry<Upload>::all()) {
    if (kind->run(queue, to, from, bytes)) return;
  }
  queue.wait();
  queue.device().memory().copy(to, from, bytes);
}

}  // namespace sluice::ops
