// NVIDIA GPUs as ops::Device, and the memory they work on.
#pragma once

#include <memory>

#include "ops/device.h"

namespace sluice::cuda {

// Returns the number of GPUs of this machine that these kernels were compiled for. Ordinals are in the driver's order,
// and CUDA_VISIBLE_DEVICES applies. The query leaves no CUDA context behind.
int device_count();

// Makes a device current for the calling thread.
void make_current(int device);
// The same for destructors, which cannot report an error.
void try_make_current(int device) noexcept;

class Device final : public ops::Device {
 public:
  Device(int ordinal, const ops::Ops& ops);
  ~Device() override;

  const ops::Ops& ops() const override { return ops_; }
  Memory& memory() override { return *device_memory_; }
  Memory& shared_memory() override { return *shared_memory_; }  // once some is allocated, queues wait after every op
  Memory& pinned_memory() override { return *pinned_memory_; }
  std::unique_ptr<ops::Queue> make_queue(ThreadPool& threads) override;
  std::unique_ptr<ops::Queue> make_copy_queue(ThreadPool& threads) override;
  size_t workspace_bytes(const ops::StepLimits& most) const override;

 private:
  const ops::Ops& ops_;
  std::unique_ptr<Memory> device_memory_, pinned_memory_, shared_memory_;
};

// Returns whether shared memory was allocated on any device. Queues then wait after every op, because the host may read
// results at any time.
bool shares_memory();

}  // namespace sluice::cuda
