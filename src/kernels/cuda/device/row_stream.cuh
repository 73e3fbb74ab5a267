// Streams many rows through blocks: each row is whole in shared memory while the next ones are prefetched (PTX ISA:
// cp.async.bulk, compute capability 9.0). Blocks that process a single row leave memory idle while they reduce it, and
// while they start and end.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sluice::cuda {

struct SumAndLargest {
  float sum, largest;
};

// Both over a block of up to 1024 threads (whole warps), with one barrier. `scratch` holds 32, and successive calls
// alternate between two of them.
__device__ inline SumAndLargest block_sum_and_max(SumAndLargest x, SumAndLargest* scratch) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  x = {warp_sum(x.sum), warp_max(x.largest)};
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < warps ? scratch[lane] : SumAndLargest{0.0f, 0.0f};
  return {warp_sum(x.sum), warp_max(x.largest)};
}

inline constexpr int kStreamedRows = 3;  // rows of a block in shared memory

// Shared memory of a block in bytes, from a multiple of 16.
constexpr int row_stream_bytes(int row_bytes) { return kStreamedRows * (row_bytes + 8); }

// The number of blocks that stream this many rows. 0: there are too few rows, they are too long or not whole packs of
// 16 bytes, or the device has no bulk copies.
inline unsigned row_stream_blocks(const Launch& l, const void* data, int64_t rows, int64_t stride_bytes,
                                  int64_t row_bytes, int threads) {
  constexpr int kRowsOfBlock = 4, kMostShared = 220 << 10, kMostThreads = 2048;  // kMostShared and kMostThreads: per SM
  if (l.compute_capability < 90 || (reinterpret_cast<uintptr_t>(data) | row_bytes | stride_bytes) % 16 != 0) return 0;
  if (row_bytes > kMostShared / kStreamedRows - 8) return 0;
  const int together =
      std::min(kMostShared / (row_stream_bytes(static_cast<int>(row_bytes)) + 1024), kMostThreads / threads);
  const int64_t blocks = int64_t{l.sm_count} * std::max(together, 1);
  return rows < blocks * kRowsOfBlock ? 0 : static_cast<unsigned>(blocks);
}

template <class... Parameters, class... Arguments>
void launch_row_stream(const Launch& l, const char* name, void (*kernel)(Parameters...), unsigned blocks,
                       unsigned threads, int row_bytes, Arguments&&... arguments) {
  const int shared = row_stream_bytes(row_bytes);
  if (shared > 48 << 10) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), name);
  }
  launch_pdl(l, name, kernel, dim3(blocks), threads, static_cast<size_t>(shared),
             std::forward<Arguments>(arguments)...);
}

// Rows blockIdx.x, blockIdx.x + gridDim.x and so on below `rows`. Each has `bytes` bytes, a multiple of 16.
class RowStream {
 public:
  // Called by all threads of the block; waits for earlier kernels.
  __device__ RowStream(void* memory, const void* data, int64_t stride_bytes, int bytes, int rows)
      : memory_(static_cast<std::byte*>(memory)),
        data_(static_cast<const std::byte*>(data)),
        stride_(stride_bytes),
        bytes_(bytes),
        rows_(rows) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStreamedRows; ++i) init_barrier(full(i), 1);
    }
    fence_proxy_async();
    wait_for_earlier();
    __syncthreads();
    for (int i = 0; i < kStreamedRows; ++i) fetch(i, static_cast<int>(blockIdx.x) + i * static_cast<int>(gridDim.x));
  }

  // Calls f(row, its elements) for each row, by all threads of the block. f must end with a block barrier after its
  // last read of the elements.
  template <class T, class F>
  __device__ void each(F&& f) {
    int stage = 0, round = 0;
    for (int row = static_cast<int>(blockIdx.x); row < rows_; row += static_cast<int>(gridDim.x)) {
      wait_barrier(full(stage), round & 1);
      f(row, reinterpret_cast<const T*>(memory_ + stage * bytes_));
      fetch(stage, row + kStreamedRows * static_cast<int>(gridDim.x));
      if (++stage == kStreamedRows) stage = 0, ++round;
    }
  }

 private:
  __device__ uint32_t full(int stage) const { return shared_address(memory_ + kStreamedRows * bytes_) + stage * 8; }
  __device__ void fetch(int stage, int row) const {
    if (threadIdx.x != 0 || row >= rows_) return;
    arrive_expecting(full(stage), static_cast<uint32_t>(bytes_));
    copy_bulk(shared_address(memory_ + stage * bytes_), data_ + row * stride_, static_cast<uint32_t>(bytes_),
              full(stage));
  }

  std::byte* const memory_;
  const std::byte* const data_;
  const int64_t stride_;
  const int bytes_, rows_;
};

}  // namespace sluice::cuda
