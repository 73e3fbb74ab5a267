// Uploads weights to the device: threads fill pinned memory, each its own part, while other parts are copied.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ops/device.h"

namespace sluice::cuda {

// The pinned memory of a queue for uploads, divided into slots. A slot is filled again when its last copy is done.
class UploadSlots {
 public:
  UploadSlots(int device, int threads);
  ~UploadSlots();
  UploadSlots(const UploadSlots&) = delete;
  UploadSlots& operator=(const UploadSlots&) = delete;

  static constexpr size_t kLongestRow = size_t{32} << 20;

  // Makes slots that hold a row of so many bytes. Waits for the copies from slots of another size.
  void fit(size_t row_bytes, cudaStream_t stream);
  size_t slot_bytes() const { return slot_bytes_; }
  int slots() const { return static_cast<int>(bytes_ / slot_bytes_); }

  // Returns a slot for a thread, one of its two in turn, when the last copy from it is done. Threads count from 0 to
  // slots() / 2 or 1.
  struct Slot {
    std::byte* data = nullptr;
    cudaEvent_t copied = nullptr;  // to be recorded behind the copy
  };
  Slot next(int thread);

 private:
  const int device_;
  size_t bytes_ = 0, slot_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::vector<cudaEvent_t> copies_;  // the last copy of each slot
  std::vector<unsigned> turns_;      // of each thread
};

// Uploads rows to `to` on the device, `pitch` bytes apart. fill(begin, end, rows) writes rows [begin, end) of row_bytes
// each on the host; the queue's threads call it. Returns when all rows are filled. The queue orders the copies with its
// ops. Threads whose copies are late wait for them, so that one call fills and copies at the same time.
void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t begin, int64_t end, std::byte* rows)>& fill);

}  // namespace sluice::cuda
