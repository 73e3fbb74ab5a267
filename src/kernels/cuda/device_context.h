// The GPU as the host sees it: one stream that all work goes to in order, the workspace of the launches, and the memory
// seams. Everything here is made by the first call and kept to the end of the process.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/cuda/launch.h"
#include "tensor/memory.h"

namespace sluice::cuda {

// Is there a driver, and a device that these kernels were compiled for? Asks without leaving anything behind.
bool device_usable();

class DecodeKernelBuilder;

class DeviceContext {
 public:
  static DeviceContext& get();  // of device 0

  const Launch& launch() const { return launch_; }
  // The indices on the device: where they are, if that is known or the device can read them on the host, else a copy
  // that is good for the launches up to the next few thousand calls.
  const int32_t* on_device(const Indices& indices);
  // Room for launches to come; waits when it has to grow. For load time.
  void reserve_workspace(size_t bytes);
  // After every op. Waits when host and device share memory: the host then looks at results without asking.
  void finish_op();
  void wait();
  // See Memory::mark().
  uint64_t record_event();
  void wait_for(uint64_t event);
  void share_memory() { shared_ = true; }
  // While ops are recorded nothing may wait, and indices must lie on the device already. Ops may go to the program,
  // where there is one.
  void begin_capture(DecodeKernelBuilder* builder) { launch_.captured = has_captured_ = true, builder_ = builder; }
  void end_capture() { launch_.captured = false, builder_ = nullptr; }
  DecodeKernelBuilder* builder() { return builder_; }

 private:
  DeviceContext();

  Launch launch_;
  bool shared_ = false, has_captured_ = false;
  DecodeKernelBuilder* builder_ = nullptr;
  int32_t *staging_ = nullptr, *staged_ = nullptr;  // pinned ring and its copy on the device
  size_t staging_at_ = 0;
  std::array<cudaEvent_t, 8> events_{};  // of the latest marks, in turn
  uint64_t events_recorded_ = 0;
};

// Device memory; pinned host memory that ops read and write in place, each of which the host then waits for; and pinned
// host memory to copy from and to.
Memory& device_memory();
Memory& shared_memory();
Memory& pinned_memory();

// See ops::Backend::record.
std::unique_ptr<ops::CapturedGraph> capture(const std::function<void()>& body);

}  // namespace sluice::cuda
