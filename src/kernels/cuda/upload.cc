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

UploadSlots::UploadSlots(int device, ThreadPool& threads)
    : device_(device),
      slot_bytes_(kSlotBytes),
      streams_(static_cast<size_t>(std::min(threads.threads(), kMostThreads))),
      memory_(std::max(2 * streams_.size() * kSlotBytes, kLongestRow)),
      copies_(memory_.size() / kSlotBytes),
      turns_(streams_.size()) {
  make_current(device);
  // The driver would take 30 ms to allocate 64 MiB, and could do nothing else meanwhile.
  threads.parallel_for(slots(), 1, [&](int64_t begin, int64_t end) {
    std::fill(memory_.data() + begin * slot_bytes_, memory_.data() + end * slot_bytes_, std::byte{0});
  });
  check_cuda(cudaHostRegister(memory_.data(), memory_.size(), cudaHostRegisterDefault), "pinned memory");
  check_cuda(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming), "event");
  for (cudaStream_t& stream : streams_) {
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  }
  for (cudaEvent_t& copy : copies_) {
    // Threads that wait leave their CPUs to the thread that prepares steps meanwhile.
    check_cuda(cudaEventCreateWithFlags(&copy, cudaEventDisableTiming | cudaEventBlockingSync), "event");
  }
}

UploadSlots::~UploadSlots() {
  try_make_current(device_);
  for (const cudaStream_t stream : streams_) {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  cudaHostUnregister(memory_.data());
  cudaEventDestroy(before_);
  for (const cudaEvent_t copy : copies_) cudaEventDestroy(copy);
}

void UploadSlots::fit(size_t row_bytes) {
  size_t wanted = kSlotBytes;
  while (wanted < row_bytes) wanted *= 2;
  if (wanted == slot_bytes_) return;
  for (const cudaEvent_t copy : copies_) check_cuda(cudaEventSynchronize(copy), "waiting for copies");
  slot_bytes_ = wanted;
}

void UploadSlots::run_after(cudaStream_t stream, int threads) {
  check_cuda(cudaEventRecord(before_, stream), "event");
  for (int thread = 0; thread < threads; ++thread) {
    check_cuda(cudaStreamWaitEvent(streams_[thread], before_), "waiting for a queue");
  }
}

UploadSlots::Slot UploadSlots::next(int thread) {
  const int slot = own_slot(thread, turns_[thread]++);
  check_cuda(cudaEventSynchronize(copies_[slot]), "waiting for a copy");
  return {memory_.data() + static_cast<size_t>(slot) * slot_bytes_, streams_[thread], copies_[slot]};
}

void UploadSlots::finish(int thread, cudaStream_t stream) const {
  check_cuda(cudaStreamWaitEvent(stream, copies_[own_slot(thread, turns_[thread] - 1)]), "waiting for copies");
}

namespace {

// Calls body(with_slot) on as many threads as there is work and room for. with_slot(use) calls use(slot), which fills
// the slot and begins its copy. The queue goes on behind all copies.
template <class F>
void on_all_slots(ops::Queue& queue, UploadSlots& slots, int64_t most, F&& body) {
  const cudaStream_t stream = current(queue).launch().stream;
  const int64_t takers = std::min<int64_t>({most, int64_t{queue.threads().threads()}, int64_t{slots.threads()}});
  if (takers == 0) return;
  slots.run_after(stream, static_cast<int>(takers));
  queue.threads().parallel_for(takers, 1, [&](int64_t first_taker, int64_t last_taker) {
    make_current(current(queue).launch().device);
    for (auto taker = static_cast<int>(first_taker); taker < last_taker; ++taker) {
      body([&](auto&& use) {
        const UploadSlots::Slot slot = slots.next(taker);
        use(slot);
        check_cuda(cudaEventRecord(slot.copied, slot.stream), "event");
      });
    }
  });
  for (int taker = 0; taker < static_cast<int>(takers); ++taker) slots.finish(taker, stream);
}

}  // namespace

void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t begin, int64_t end, std::byte* rows)>& fill) {
  CHECK(row_bytes > 0 && row_bytes <= UploadSlots::kLongestRow, "rows of {} bytes", row_bytes);
  if (rows == 0) return;
  UploadSlots& slots = current(queue).upload_slots();
  slots.fit(row_bytes);
  const auto rows_of = [&](size_t bytes) { return static_cast<int64_t>(std::max<size_t>(bytes / row_bytes, 1)); };
  const int64_t least = rows_of(kLeastPiece), most = rows_of(slots.slot_bytes()), parts = (rows + least - 1) / least;
  const int64_t takers = std::min<int64_t>({parts, int64_t{queue.threads().threads()}, int64_t{slots.threads()}});
  std::atomic<int64_t> next{0};
  // Takes the next rows: fewer towards the end, so that all threads finish together. Empty: there are none.
  const auto take = [&] {
    int64_t begin = next.load(std::memory_order_relaxed), end = begin;
    do {
      end = std::min(begin + std::clamp((rows - begin) / (2 * takers), least, most), rows);
    } while (begin < rows && !next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    return std::pair(std::min(begin, rows), end);
  };
  on_all_slots(queue, slots, parts, [&](auto&& with_slot) {
    for (auto [begin, end] = take(); begin < end; std::tie(begin, end) = take()) {
      with_slot([&, begin = begin, end = end](const UploadSlots::Slot& slot) {
        fill(begin, end, slot.data);
        std::byte* const there = to + static_cast<size_t>(begin) * pitch;
        const auto count = static_cast<size_t>(end - begin);
        check_cuda(pitch == row_bytes
                       ? cudaMemcpyAsync(there, slot.data, count * row_bytes, cudaMemcpyHostToDevice, slot.stream)
                       : cudaMemcpy2DAsync(there, pitch, slot.data, row_bytes, row_bytes, count, cudaMemcpyHostToDevice,
                                           slot.stream),
                   "weights");
      });
    }
  });
}

namespace {

// A part of one of several uploads, for one slot.
struct Piece {
  const ops::UploadedBytes* of = nullptr;
  size_t begin = 0, bytes = 0;
};

// Threads take pieces of all uploads in turn: to wait for all of them after each would leave most idle.
bool upload(ops::Queue& queue, std::span<const ops::UploadedBytes> all) {
  if (dynamic_cast<Queue*>(&queue) == nullptr) return false;
  UploadSlots& slots = current(queue).upload_slots();
  slots.fit(kSlotBytes);
  std::vector<Piece> pieces;
  for (const ops::UploadedBytes& one : all) {
    CHECK(one.piece <= kSlotBytes, "pieces of {} bytes", one.piece);
    const size_t step = kSlotBytes / one.piece * one.piece;
    for (size_t begin = 0; begin < one.bytes; begin += step) {
      pieces.push_back({&one, begin, std::min(step, one.bytes - begin)});
    }
  }
  std::atomic<size_t> next{0};
  on_all_slots(queue, slots, static_cast<int64_t>(pieces.size()), [&](auto&& with_slot) {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      const Piece& piece = pieces[i];
      with_slot([&](const UploadSlots::Slot& slot) {
        piece.of->read(piece.begin, {slot.data, piece.bytes});
        check_cuda(
            cudaMemcpyAsync(piece.of->to + piece.begin, slot.data, piece.bytes, cudaMemcpyHostToDevice, slot.stream),
            "weights");
      });
    }
  });
  return true;
}

std::byte* place_of(const ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  const bool bytes = from.dtype == into.dtype && into.dtype->block_size == 1 && from.dense();
  if (!bytes || padded_k(into.k) != into.k || dynamic_cast<const Queue*>(&queue) == nullptr) return nullptr;
  return into.data + static_cast<size_t>(row * into.k) * static_cast<size_t>(into.dtype->block_bytes);
}

const ops::Upload uploads{.name = "cuda", .run = upload, .place_of = place_of};
const Registry<ops::Upload> registered(uploads);

}  // namespace
}  // namespace sluice::cuda
