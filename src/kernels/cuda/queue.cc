// Streams, events, workspace and the ring of indices of a queue.
#include "kernels/cuda/queue.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/upload.h"
#include "sluice/error.h"

namespace sluice::cuda {
namespace {

constexpr size_t kStagedIndices = 1 << 20;  // 4 MiB of ring
constexpr auto kLookForRanks = std::chrono::milliseconds(10);
constexpr auto kWaitForRanks = std::chrono::seconds(2);  // with the work that is left at the end
constexpr size_t kFirstWorkspace = size_t{96} << 20;     // grows with reserve_workspace

template <class T>
T* allocate(size_t count, const char* what) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, count * sizeof(T)), what);
  return static_cast<T*>(data);
}

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::kInternal, fmt::format("CUDA: {}: {}", what, cudaGetErrorString(error)));
}

const int32_t* on_device(const Launch& l, const Indices& indices) { return l.queue->on_device(indices); }

void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

Queue::Queue(Device& device, ThreadPool& threads, bool computes) : ops::Queue(device, threads) {
  const int ordinal = device.ordinal();
  make_current(ordinal);
  launch_.queue = this;
  launch_.device = ordinal;
  check_cuda(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "stream");
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, ordinal), "device");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "device");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "device");
  // A device can also run the kernels for older devices, which allows testing them on it.
  const char* most = std::getenv("SLUICE_CUDA_CAPABILITY");
  launch_.compute_capability = std::min(major * 10 + minor, most != nullptr ? std::atoi(most) : INT32_MAX);
  launch_.pdl = launch_.compute_capability >= 90;
  for (cudaEvent_t& event : events_) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  if (computes) launch_.dense = make_dense_library();
  staged_ = allocate<int32_t>(kStagedIndices, "ring of indices");
  check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), kStagedIndices * sizeof(int32_t), cudaHostAllocDefault),
             "ring of indices");
  if (computes) reserve_workspace(kFirstWorkspace);
}

// Ignores errors: nobody waits for the stream's remaining work.
Queue::~Queue() {
  try_make_current(launch_.device);
  end_work();
  peers_.clear();
  uploads_.reset();
  cudaFree(launch_.workspace);
  cudaFree(staged_);
  cudaFreeHost(pinned_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  launch_.dense.reset();
  cudaStreamDestroy(launch_.stream);
}

void Queue::copy_async(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  make_current(launch_.device);
  if (builder_ != nullptr) builder_->flush();  // the recorded ops come first
  if (bytes <= kSmallCopy) return copy_small(launch_, to, from, bytes);
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, launch_.stream), "copy");
}

void Queue::run_after(ops::Queue& other, uint64_t event) {
  auto& before = static_cast<Queue&>(other);
  check_cuda(cudaStreamWaitEvent(launch_.stream, before.events_[event % before.events_.size()]), "waiting for a queue");
}

UploadSlots& Queue::upload_slots() {
  if (uploads_ == nullptr) uploads_ = std::make_unique<UploadSlots>(launch_.device, threads());
  return *uploads_;
}

const int32_t* Queue::on_device(const Indices& indices) {
  if (indices.empty()) return staged_;
  if (indices.device != nullptr) return indices.device;
  CHECK(!launch_.captured, "{} indices of a captured op are not on the device", indices.size());
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, indices.data()), "indices");
  if (attributes.type != cudaMemoryTypeUnregistered) return static_cast<const int32_t*>(attributes.devicePointer);
  const size_t count = (indices.size() + 31) / 32 * 32;  // whole lines
  CHECK(count <= kStagedIndices, "{} indices", indices.size());
  if (pinned_at_ + count > kStagedIndices) {
    wait();  // earlier launches may still read the part of the ring that is overwritten next
    pinned_at_ = 0;
  }
  std::memcpy(pinned_ + pinned_at_, indices.data(), indices.size_bytes());
  int32_t* to = staged_ + pinned_at_;
  check_cuda(cudaMemcpyAsync(to, pinned_ + pinned_at_, indices.size_bytes(), cudaMemcpyHostToDevice, launch_.stream),
             "indices");
  pinned_at_ += count;
  return to;
}

void Queue::reserve_workspace(size_t bytes) {
  if (bytes <= launch_.workspace_bytes) return;
  wait();
  make_current(launch_.device);
  CHECK(!has_captured_, "captured graphs hold the workspace that would be replaced");
  if (launch_.workspace != nullptr) check_cuda(cudaFree(launch_.workspace), "workspace");
  const size_t whole = (bytes + kBytesPerArrival - 1) / kBytesPerArrival * kBytesPerArrival;
  const size_t arrivals = whole / kBytesPerArrival * sizeof(int32_t);
  launch_.workspace = allocate<std::byte>(whole + arrivals, "workspace");
  launch_.workspace_bytes = whole;
  launch_.arrivals = reinterpret_cast<int32_t*>(launch_.workspace + whole);
  check_cuda(cudaMemsetAsync(launch_.arrivals, 0, arrivals, launch_.stream), "workspace");
}

void Queue::finish_op() {
  if (shares_memory() && !launch_.captured) wait();
}

// Work that waits for a lost rank would never end.
void Queue::end_work() {
  if (!peers_.empty()) {
    const auto limit = std::chrono::steady_clock::now() + kWaitForRanks;
    while (cudaStreamQuery(launch_.stream) == cudaErrorNotReady && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    for (const std::unique_ptr<Peers>& peers : peers_) peers->end();
  }
  cudaStreamSynchronize(launch_.stream);
}

Peers& Queue::exchange(Communicator& ranks) {
  for (const std::unique_ptr<Peers>& peers : peers_) {
    if (&peers->communicator() == &ranks) return *peers;
  }
  CHECK(!launch_.captured, "the first exchange between ranks is captured");
  wait();
  return *peers_.emplace_back(std::make_unique<Peers>(launch_.device, ranks));
}

template <class Query>
void Queue::wait_with_ranks(Query&& query) {
  auto look = std::chrono::steady_clock::now() + kLookForRanks;
  cudaError_t state = query();
  for (; state == cudaErrorNotReady; state = query()) {
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() < look) continue;
    for (const std::unique_ptr<Peers>& peers : peers_) peers->check();
    look = std::chrono::steady_clock::now() + kLookForRanks;
  }
  check_cuda(state, "waiting for the device");
}

void Queue::wait() {
  if (!peers_.empty()) return wait_with_ranks([&] { return cudaStreamQuery(launch_.stream); });
  check_cuda(cudaStreamSynchronize(launch_.stream), "waiting for the device");
}

uint64_t Queue::record_event() {
  check_cuda(cudaEventRecord(events_[events_recorded_ % events_.size()], launch_.stream), "event");
  return events_recorded_++;
}

// If the event has been reused for a later one, this waits for more work than asked for.
void Queue::wait_for(uint64_t event) {
  const cudaEvent_t latest = events_[event % events_.size()];
  if (!peers_.empty()) return wait_with_ranks([&] { return cudaEventQuery(latest); });
  check_cuda(cudaEventSynchronize(latest), "waiting for the device");
}

}  // namespace sluice::cuda
