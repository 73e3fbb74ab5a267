// Uploads weights to the device: threads fill one pinned buffer while the other is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/device.h"

namespace sluice::cuda {

// Uploads rows to `to` on the device, `pitch` bytes apart. fill(i, row) writes the row_bytes of row i on the host; it
// may run on any of the queue's threads. Returns when all rows are filled. The queue orders the copies with its ops.
void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t, std::byte*)>& fill);

}  // namespace sluice::cuda
