// Uploads alternate between two pinned buffers per queue.
#include "kernels/cuda/upload.h"

#include <algorithm>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cuda/queue.h"

namespace sluice::cuda {

void upload_rows(ops::Queue& queue, std::byte* to, size_t pitch, size_t row_bytes, int64_t rows,
                 const std::function<void(int64_t, std::byte*)>& fill) {
  CHECK(row_bytes > 0 && row_bytes <= Queue::kUploadBytes, "rows of {} bytes", row_bytes);
  Queue& own = current(queue);
  cudaStream_t stream = own.launch().stream;
  const auto most = static_cast<int64_t>(Queue::kUploadBytes / row_bytes);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const Queue::UploadBuffer& buffer = own.next_upload_buffer();
    queue.threads().parallel_for(count, std::max<int64_t>(1, static_cast<int64_t>((size_t{64} << 10) / row_bytes)),
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
