// Start and memory of the device.
#include "kernels/cuda/device_context.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "sluice/error.h"

namespace sluice::cuda {
namespace {

constexpr size_t kStagedIndices = 1 << 20;            // 4 MiB of ring
constexpr size_t kFirstWorkspace = size_t{96} << 20;  // grows with reserve_workspace

template <class T>
T* allocate(size_t count, const char* what) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, count * sizeof(T)), what);
  return static_cast<T*>(data);
}

class OnDevice : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    void* data = nullptr;
    DeviceContext& context = DeviceContext::get();
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this one does not stay
      throw Error(ErrorCode::kOutOfMemory, fmt::format("{} bytes of device memory", bytes));
    }
    check_cuda(error, "device memory");
    check_cuda(cudaMemsetAsync(data, 0, bytes, context.launch().stream), "clearing memory");
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, size_t) noexcept override { cudaFree(data); }
  void copy(void* to, const void* from, size_t bytes) override {
    start_copy(to, from, bytes);
    wait();
  }
  void copy_later(void* to, const void* from, size_t bytes) override {
    if (bytes > kSmallCopy) return start_copy(to, from, bytes);
    if (bytes > 0) copy_small(DeviceContext::get().launch(), to, from, bytes);
  }
  void wait() override { DeviceContext::get().wait(); }
  uint64_t record_event() override { return DeviceContext::get().record_event(); }
  void wait_for(uint64_t event) override { DeviceContext::get().wait_for(event); }
  bool host_accessible() const override { return false; }
  size_t available() const override { return info().first; }
  size_t total() const override { return info().second; }

 private:
  static void start_copy(void* to, const void* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, DeviceContext::get().launch().stream), "copy");
  }
  static std::pair<size_t, size_t> info() {
    DeviceContext::get();
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
    return {free, total};
  }
};

class Pinned : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    DeviceContext::get();
    void* data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();
      throw Error(ErrorCode::kOutOfMemory, fmt::format("{} bytes of pinned memory", bytes));
    }
    std::memset(data, 0, bytes);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, size_t) noexcept override { cudaFreeHost(data); }
  void copy(void* to, const void* from, size_t bytes) override {
    DeviceContext::get().wait();
    std::memcpy(to, from, bytes);
  }
  bool host_accessible() const override { return true; }
  size_t available() const override { return host_memory().available(); }
  size_t total() const override { return host_memory().total(); }
};

class Shared : public Pinned {
 public:
  std::byte* allocate(size_t bytes) override {
    DeviceContext::get().share_memory();
    return Pinned::allocate(bytes);
  }
};

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::kInternal, fmt::format("CUDA: {}: {}", what, cudaGetErrorString(error)));
}

void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

DeviceContext& DeviceContext::get() {
  static DeviceContext context;
  return context;
}

DeviceContext::DeviceContext() {
  check_cuda(cudaSetDevice(0), "choosing the device");
  check_cuda(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "stream");
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "device");
  // A device can run the kernels of older ones, so that they are tested on it.
  const char* most = std::getenv("SLUICE_CUDA_CAPABILITY");
  launch_.compute_capability = std::min(major * 10 + minor, most != nullptr ? std::atoi(most) : INT32_MAX);
  launch_.pdl = launch_.compute_capability >= 90;
  for (cudaEvent_t& event : events_) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  staged_ = allocate<int32_t>(kStagedIndices, "ring of indices");
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&staging_), kStagedIndices * sizeof(int32_t), cudaHostAllocDefault),
             "ring of indices");
  reserve_workspace(kFirstWorkspace);
}

const int32_t* DeviceContext::on_device(const Indices& indices) {
  if (indices.empty()) return staged_;
  if (indices.device != nullptr) return indices.device;
  CHECK(!launch_.captured, "{} indices of a recording are not on the device", indices.size());
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, indices.data()), "indices");
  if (attributes.type != cudaMemoryTypeUnregistered) return static_cast<const int32_t*>(attributes.devicePointer);
  const size_t count = (indices.size() + 31) / 32 * 32;  // whole lines
  CHECK(count <= kStagedIndices, "{} indices", indices.size());
  if (staging_at_ + count > kStagedIndices) {
    wait();  // launches may still read what would be overwritten
    staging_at_ = 0;
  }
  std::memcpy(staging_ + staging_at_, indices.data(), indices.size_bytes());
  int32_t* to = staged_ + staging_at_;
  check_cuda(cudaMemcpyAsync(to, staging_ + staging_at_, indices.size_bytes(), cudaMemcpyHostToDevice, launch_.stream),
             "indices");
  staging_at_ += count;
  return to;
}

void DeviceContext::reserve_workspace(size_t bytes) {
  if (bytes <= launch_.workspace_bytes) return;
  wait();
  // Recordings of another engine have the one before in them: that stays.
  if (launch_.workspace != nullptr && !has_captured_) check_cuda(cudaFree(launch_.workspace), "workspace");
  const size_t whole = (bytes + kBytesPerArrival - 1) / kBytesPerArrival * kBytesPerArrival;
  const size_t arrivals = whole / kBytesPerArrival * sizeof(int32_t);
  launch_.workspace = allocate<std::byte>(whole + arrivals, "workspace");
  launch_.workspace_bytes = whole;
  launch_.arrivals = reinterpret_cast<int32_t*>(launch_.workspace + whole);
  check_cuda(cudaMemsetAsync(launch_.arrivals, 0, arrivals, launch_.stream), "workspace");
}

void DeviceContext::finish_op() {
  if (shared_ && !launch_.captured) wait();
}

void DeviceContext::wait() { check_cuda(cudaStreamSynchronize(launch_.stream), "waiting for the device"); }

uint64_t DeviceContext::record_event() {
  check_cuda(cudaEventRecord(events_[events_recorded_ % events_.size()], launch_.stream), "event");
  return events_recorded_++;
}

// An event that a later mark took over stands for more than was asked for.
void DeviceContext::wait_for(uint64_t event) {
  check_cuda(cudaEventSynchronize(events_[event % events_.size()]), "waiting for the device");
}

Memory& device_memory() {
  static OnDevice memory;
  return memory;
}

Memory& pinned_memory() {
  static Pinned memory;
  return memory;
}

Memory& shared_memory() {
  static Shared memory;
  return memory;
}

}  // namespace sluice::cuda
