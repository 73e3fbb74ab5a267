// A queue of a GPU: one stream that runs all its work in order, the workspace for launches, events, and the pinned
// memory for uploading weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

class DecodeKernelBuilder;
class UploadSlots;

class Queue final : public ops::Queue {
 public:
  // `computes`: false for a queue that has neither a workspace nor a library for matmuls, see make_copy_queue.
  Queue(Device& device, ThreadPool& threads, bool computes = true);
  ~Queue() override;

  void copy_async(void* to, const void* from, size_t bytes) override;
  void wait() override;
  uint64_t record_event() override;
  void wait_for(uint64_t event) override;
  void run_after(ops::Queue& other, uint64_t event) override;
  void reserve_workspace(size_t bytes) override;
  std::unique_ptr<ops::CapturedGraph> capture(const std::function<void()>& body) override;

  const Launch& launch() const { return launch_; }
  // Returns the indices in memory that the device can read. This is their device copy or their host memory if the
  // device can access it; otherwise it is a new copy. A new copy is valid for launches within the next few thousand
  // calls.
  const int32_t* on_device(const Indices& indices);
  // Called after every op. Waits if shared memory is in use.
  void finish_op();
  // During capture nothing may wait, and all indices must be on the device already. A builder records ops and launches
  // them later, in order.
  void begin_capture(DecodeKernelBuilder* builder) { launch_.captured = has_captured_ = true, builder_ = builder; }
  void end_capture() { launch_.captured = false, builder_ = nullptr; }
  DecodeKernelBuilder* builder() const { return builder_; }

  // Returns the memory through which the queue's kernels exchange data with other ranks. The first call for a
  // communicator sets it up, together with the other ranks; it must not be during capture. The communicator must exist
  // as long as work is waited for.
  const PeerMemory& peers(Communicator& ranks) { return exchange(ranks).memory(); }
  // Null unless there are two ranks.
  SumsBegun* sums_begun(Communicator& ranks) { return exchange(ranks).sums_begun(); }

  UploadSlots& upload_slots();  // pinned memory for uploading weights, allocated at the first call

 private:
  // Waits until query() no longer returns cudaErrorNotReady. Throws Error(kInternal) if a rank was lost meanwhile.
  template <class Query>
  void wait_with_ranks(Query&& query);
  void end_work();
  Peers& exchange(Communicator& ranks);

  Launch launch_;
  bool has_captured_ = false;
  DecodeKernelBuilder* builder_ = nullptr;
  int32_t *pinned_ = nullptr, *staged_ = nullptr;  // ring of indices in pinned memory, and its copy on the device
  size_t pinned_at_ = 0;
  std::array<cudaEvent_t, 8> events_{};  // the latest ones, in turn
  uint64_t events_recorded_ = 0;
  std::unique_ptr<UploadSlots> uploads_;
  std::vector<std::unique_ptr<Peers>> peers_;
};

// Returns the op's queue and makes its device current for the calling thread.
inline Queue& current(ops::Queue& queue) {
  auto& own = static_cast<Queue&>(queue);
  make_current(own.launch().device);
  return own;
}

}  // namespace sluice::cuda
