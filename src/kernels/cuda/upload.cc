// Two buffers in turn.
#include "kernels/cuda/upload.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cuda/device_context.h"

namespace sluice::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{32} << 20;

// Kept to the end of the process, like the stream.
struct PinnedBuffer {
  std::byte* data = nullptr;
  cudaEvent_t copied = nullptr;  // its last copy

  PinnedBuffer() {
    check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&data), kBufferBytes, cudaHostAllocDefault), "pinned memory");
    check_cuda(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), "event");
  }
};

PinnedBuffer& next_buffer() {
  static std::array<PinnedBuffer, 2> buffers;
  static size_t turn = 0;
  PinnedBuffer& buffer = buffers[turn++ % buffers.size()];
  check_cuda(cudaEventSynchronize(buffer.copied), "waiting for a copy");
  return buffer;
}

}  // namespace

void upload_rows(ThreadPool& pool, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t, std::byte*)>& fill) {
  CHECK(row_bytes > 0 && row_bytes <= kBufferBytes, "rows of {} bytes", row_bytes);
  cudaStream_t stream = DeviceContext::get().launch().stream;
  const auto most = static_cast<int64_t>(kBufferBytes / row_bytes);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const PinnedBuffer& buffer = next_buffer();
    pool.parallel_for(count, std::max<int64_t>(1, static_cast<int64_t>((size_t{64} << 10) / row_bytes)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          fill(first + i, buffer.data + static_cast<size_t>(i) * row_bytes);
                        }
                      });
    check_cuda(cudaMemcpy2DAsync(to + static_cast<size_t>(first) * pitch, pitch, buffer.data, row_bytes, row_bytes,
                                 static_cast<size_t>(count), cudaMemcpyHostToDevice, stream),
               "weights");
    check_cuda(cudaEventRecord(buffer.copied, stream), "event");
  }
}

}  // namespace sluice::cuda
