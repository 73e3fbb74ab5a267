// Uploads weights to the device: threads fill pinned memory, each its own part, while other parts are copied.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/device.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// The pinned memory of a queue for uploads, divided into slots. A slot is filled again when its last copy is done.
class UploadSlots {
 public:
  UploadSlots(int device, ThreadPool& threads);
  ~UploadSlots();
  UploadSlots(const UploadSlots&) = delete;
  UploadSlots& operator=(const UploadSlots&) = delete;

  static constexpr size_t kLongestRow = size_t{32} << 20;

  // Makes slots that hold a row of so many bytes. Waits for the copies from slots of another size.
  void fit(size_t row_bytes);
  size_t slot_bytes() const { return slot_bytes_; }
  int slots() const { return static_cast<int>(memory_.size() / slot_bytes_); }

  // Threads count from 0 to threads() - 1. Each copies on a stream of its own. On one stream the weights arrived no
  // later, but a start took longer (bench/results/2026-11-cuda-load.md).
  int threads() const { return std::clamp(slots() / 2, 1, static_cast<int>(streams_.size())); }
  // Has the streams of so many threads wait for the work that is on a stream so far.
  void run_after(cudaStream_t stream, int threads);
  // Returns a slot for a thread, one of its two in turn, when the last copy from it is done.
  struct Slot {
    std::byte* data = nullptr;
    cudaStream_t stream = nullptr;  // of the thread, for the copy
    cudaEvent_t copied = nullptr;   // to be recorded behind the copy
  };
  Slot next(int thread);
  // Has a stream wait for the copies of a thread so far.
  void finish(int thread, cudaStream_t stream) const;

 private:
  int own_slot(int thread, unsigned turn) const {
    const int own = std::min(slots(), 2);
    return thread * own + static_cast<int>(turn % static_cast<unsigned>(own));
  }

  const int device_;
  size_t slot_bytes_ = 0;
  cudaEvent_t before_ = nullptr;       // what copies wait for
  std::vector<cudaStream_t> streams_;  // of each thread
  Buffer memory_;
  std::vector<cudaEvent_t> copies_;  // the last copy of each slot
  std::vector<unsigned> turns_;      // of each thread
};

// Uploads rows to `to` on the device, `pitch` bytes apart. fill(begin, end, rows) writes rows [begin, end) of row_bytes
// each on the host; the queue's threads call it. Returns when all rows are filled. The queue orders the copies with its
// ops. Threads whose copies are late wait for them, so that one call fills and copies at the same time.
void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t begin, int64_t end, std::byte* rows)>& fill);

}  // namespace sluice::cuda
