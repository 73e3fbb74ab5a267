// A thread fills one of its two slots while the other is copied.
#include "kernels/cuda/upload.h"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/registry.h"
#include "base/thread_pool.h"
#include "kernels/cuda/queue.h"
#include "ops/upload.h"

namespace sluice::cuda {
namespace {

constexpr size_t kSlotBytes = size_t{2} << 20, kLeastPiece = size_t{256} << 10;
constexpr int kMostThreads = 16;  // more threads than that do not read memory faster than it is copied

}  // namespace

UploadSlots::UploadSlots(int device, int threads)
    : device_(device),
      bytes_(std::max(2 * static_cast<size_t>(std::min(threads, kMostThreads)) * kSlotBytes, kLongestRow)),
      slot_bytes_(kSlotBytes),
      copies_(bytes_ / kSlotBytes),
      turns_(copies_.size()) {
  make_current(device);
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&data_), bytes_, cudaHostAllocDefault), "pinned memory");
  for (cudaEvent_t& copy : copies_) {
    // Threads that wait leave their CPUs to the thread that prepares steps meanwhile.
    check_cuda(cudaEventCreateWithFlags(&copy, cudaEventDisableTiming | cudaEventBlockingSync), "event");
  }
}

UploadSlots::~UploadSlots() {
  try_make_current(device_);
  cudaFreeHost(data_);
  for (const cudaEvent_t copy : copies_) cudaEventDestroy(copy);
}

void UploadSlots::fit(size_t row_bytes, cudaStream_t stream) {
  size_t wanted = kSlotBytes;
  while (wanted < row_bytes) wanted *= 2;
  if (wanted == slot_bytes_) return;
  check_cuda(cudaStreamSynchronize(stream), "waiting for copies");
  slot_bytes_ = wanted;
}

UploadSlots::Slot UploadSlots::next(int thread) {
  const int own = std::min(slots(), 2);
  const int slot = thread * own + static_cast<int>(turns_[thread]++ % static_cast<unsigned>(own));
  check_cuda(cudaEventSynchronize(copies_[slot]), "waiting for a copy");
  return {data_ + static_cast<size_t>(slot) * slot_bytes_, copies_[slot]};
}

void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t begin, int64_t end, std::byte* rows)>& fill) {
  CHECK(row_bytes > 0 && row_bytes <= UploadSlots::kLongestRow, "rows of {} bytes", row_bytes);
  if (rows == 0) return;
  UploadSlots& slots = current(queue).upload_slots();
  cudaStream_t stream = current(queue).launch().stream;
  slots.fit(row_bytes, stream);
  const auto rows_of = [&](size_t bytes) { return static_cast<int64_t>(std::max<size_t>(bytes / row_bytes, 1)); };
  const int64_t least = rows_of(kLeastPiece), most = rows_of(slots.slot_bytes());
  const int64_t takers = std::min<int64_t>(
      {(rows + least - 1) / least, int64_t{queue.threads().threads()}, std::max(slots.slots() / 2, 1)});
  std::atomic<int64_t> next{0};
  // Takes the next rows: fewer towards the end, so that all threads finish together. Empty: there are none.
  const auto take = [&] {
    int64_t begin = next.load(std::memory_order_relaxed), end = begin;
    do {
      end = std::min(begin + std::clamp((rows - begin) / (2 * takers), least, most), rows);
    } while (begin < rows && !next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return std::pair(std::min(begin, rows), end);
  };
  queue.threads().parallel_for(takers, 1, [&](int64_t first_taker, int64_t last_taker) {
    make_current(current(queue).launch().device);
    for (auto taker = static_cast<int>(first_taker); taker < last_taker; ++taker) {
      for (auto [begin, end] = take(); begin < end; std::tie(begin, end) = take()) {
        const UploadSlots::Slot slot = slots.next(taker);
        fill(begin, end, slot.data);
        std::byte* const there = to + static_cast<size_t>(begin) * pitch;
        const auto count = static_cast<size_t>(end - begin);
        check_cuda(pitch == row_bytes
                       ? cudaMemcpyAsync(there, slot.data, count * row_bytes, cudaMemcpyHostToDevice, stream)
                       : cudaMemcpy2DAsync(there, pitch, slot.data, row_bytes, row_bytes, count, cudaMemcpyHostToDevice,
                                           stream),
                   "weights");
        check_cuda(cudaEventRecord(slot.copied, stream), "event");
      }
    }
  });
}

namespace {

bool upload(ops::Queue& queue, std::byte* to, const std::byte* from, size_t bytes) {
  if (dynamic_cast<Queue*>(&queue) == nullptr) return false;
  constexpr size_t kRow = 4096;
  const auto part = [&](size_t first, size_t row_bytes, size_t rows) {
    upload_rows(queue, to + first, row_bytes, row_bytes, static_cast<int64_t>(rows),
                [&](int64_t begin, int64_t end, std::byte* into) {
                  const auto at = static_cast<size_t>(begin) * row_bytes;
                  std::copy_n(from + first + at, static_cast<size_t>(end - begin) * row_bytes, into);
                });
  };
  part(0, kRow, bytes / kRow);
  if (bytes % kRow != 0) part(bytes / kRow * kRow, bytes % kRow, 1);
  return true;
}

const ops::Upload uploads{.name = "cuda", .run = upload};
const Registry<ops::Upload> registered(uploads);

}  // namespace
}  // namespace sluice::cuda
