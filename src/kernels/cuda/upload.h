// Weights on their way to the device: threads fill pinned buffers while the one before is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ops/device.h"

namespace sluice::cuda {

// Rows to `to` on the device, `pitch` bytes apart there: fill(i, row) writes the row_bytes of row i on the host and may
// run on any thread of the queue. Returns when all rows are filled; the copies are in order with the ops.
void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t, std::byte*)>& fill);

}  // namespace sluice::cuda
