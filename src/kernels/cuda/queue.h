// A queue of a GPU: one stream that all its work goes to in order, the workspace of its launches, its events and the
// pinned buffers that weights go through.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

class DecodeKernelBuilder;

class Queue final : public ops::Queue {
 public:
  Queue(Device& device, ThreadPool& threads);
  ~Queue() override;

  void copy_async(void* to, const void* from, size_t bytes) override;
  void wait() override;
  uint64_t record_event() override;
  void wait_for(uint64_t event) override;
  void run_after(ops::Queue& other, uint64_t event) override;
  void reserve_workspace(size_t bytes) override;
  std::unique_ptr<ops::CapturedGraph> capture(const std::function<void()>& body) override;

  const Launch& launch() const { return launch_; }
  // The indices on the device: where they are, if that is known or the device can read them on the host, else a copy
  // that is good for the launches up to the next few thousand calls.
  const int32_t* on_device(const Indices& indices);
  // After every op. Waits when host and device share memory.
  void finish_op();
  // While ops are captured nothing may wait, and indices must lie on the device already. Ops may go to the builder,
  // where there is one.
  void begin_capture(DecodeKernelBuilder* builder) { launch_.captured = has_captured_ = true, builder_ = builder; }
  void end_capture() { launch_.captured = false, builder_ = nullptr; }
  DecodeKernelBuilder* builder() const { return builder_; }

  // Pinned memory for weights on their way, kUploadBytes of it, in turns; waits for the last copy from it.
  static constexpr size_t kUploadBytes = size_t{32} << 20;
  struct UploadBuffer {
    std::byte* data = nullptr;
    cudaEvent_t copied = nullptr;  // recorded after its last copy
  };
  const UploadBuffer& next_upload_buffer();

 private:
  Launch launch_;
  bool has_captured_ = false;
  DecodeKernelBuilder* builder_ = nullptr;
  int32_t *pinned_ = nullptr, *staged_ = nullptr;  // ring of indices and its copy on the device
  size_t pinned_at_ = 0;
  std::array<cudaEvent_t, 8> events_{};  // the latest ones, in turn
  uint64_t events_recorded_ = 0;
  std::array<UploadBuffer, 2> uploads_{};
  size_t upload_turn_ = 0;
};

// The queue of an op, its device current for the calling thread.
inline Queue& current(ops::Queue& queue) {
  auto& own = static_cast<Queue&>(queue);
  make_current(own.launch().device);
  return own;
}

}  // namespace sluice::cuda
