// The memories of a CUDA device.
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/queue.h"
#include "sluice/error.h"

namespace sluice::cuda {
namespace {

std::atomic<bool> shared_allocated = false;

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(int device) : device_(device) {
    make_current(device);
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  ~DeviceMemory() override { cudaStreamDestroy(stream_); }

  std::byte* allocate(size_t bytes) override {
    make_current(device_);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this error is not sticky
      throw Error(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} bytes of memory on GPU {}", bytes, device_));
    }
    check_cuda(error, "device memory");
    check_cuda(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory");
    check_cuda(cudaStreamSynchronize(stream_), "clearing memory");
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, size_t) noexcept override { cudaFree(data); }
  void copy(void* to, const void* from, size_t bytes) override {
    make_current(device_);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy");
    check_cuda(cudaStreamSynchronize(stream_), "copy");
  }
  bool host_accessible() const override { return false; }
  size_t available() const override { return info().first; }
  size_t total() const override { return info().second; }

 private:
  std::pair<size_t, size_t> info() const {
    make_current(device_);
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
    return {free, total};
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
};

class PinnedMemory : public Memory {
 public:
  explicit PinnedMemory(int device) : device_(device) {}
  std::byte* allocate(size_t bytes) override {
    make_current(device_);
    void* data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();
      throw Error(ErrorCode::kOutOfMemory, fmt::format("cannot allocate {} bytes of pinned memory", bytes));
    }
    std::memset(data, 0, bytes);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, size_t) noexcept override { cudaFreeHost(data); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  bool host_accessible() const override { return true; }
  size_t available() const override { return host_memory().available(); }
  size_t total() const override { return host_memory().total(); }

 private:
  const int device_;
};

class SharedMemory final : public PinnedMemory {
 public:
  using PinnedMemory::PinnedMemory;
  std::byte* allocate(size_t bytes) override {
    shared_allocated = true;
    return PinnedMemory::allocate(bytes);
  }
};

}  // namespace

bool shares_memory() { return shared_allocated.load(std::memory_order_relaxed); }

namespace {
thread_local int current_device = -1;  // of this thread; -1: not known
}

void make_current(int device) {
  if (current_device == device) return;
  check_cuda(cudaSetDevice(device), "choosing the device");
  current_device = device;
}

void try_make_current(int device) noexcept { current_device = cudaSetDevice(device) == cudaSuccess ? device : -1; }

Device::Device(int ordinal, const ops::Ops& ops)
    : ops::Device(ordinal),
      ops_(ops),
      device_memory_(std::make_unique<DeviceMemory>(ordinal)),
      pinned_memory_(std::make_unique<PinnedMemory>(ordinal)),
      shared_memory_(std::make_unique<SharedMemory>(ordinal)) {}

Device::~Device() = default;

std::unique_ptr<ops::Queue> Device::make_queue(ThreadPool& threads) { return std::make_unique<Queue>(*this, threads); }

std::unique_ptr<ops::Queue> Device::make_copy_queue(ThreadPool& threads) {
  return std::make_unique<Queue>(*this, threads, /*computes=*/false);
}

size_t Device::workspace_bytes(const ops::StepLimits& most) const {
  // Decode attention splits the keys of each sequence into chunks.
  const size_t attention =
      attention_workspace(most.sequences, most.attention_heads, most.attention_value_dim, most.length);
  return std::max(matmul_workspace(most.tokens, most.widest_matmul), attention);
}

}  // namespace sluice::cuda
