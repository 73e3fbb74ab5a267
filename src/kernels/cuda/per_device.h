// Values computed once per device, for example a kernel's shared memory limit or the number of clusters that fit.
#pragma once

#include <array>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

inline constexpr int kMostDevices = 64;

// Thread-safe. The first get() for a device computes its value; that device must be current for the calling thread.
template <class T>
class PerDevice {
 public:
  template <class Make>
  T& get(int device, Make&& make) {
    CHECK(device >= 0 && device < kMostDevices, "device {}", device);
    const auto i = static_cast<size_t>(device);
    std::call_once(once_[i], [&] { values_[i].emplace(make()); });
    return *values_[i];
  }

 private:
  std::array<std::once_flag, kMostDevices> once_;
  std::array<std::optional<T>, kMostDevices> values_;
};

// Lets a kernel have more than 48 KiB of shared memory per block, once per device.
class SharedMemoryLimit {
 public:
  template <class Kernel>
  void raise(int device, Kernel* kernel, size_t bytes) {
    raised_.get(device, [&] {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                 "shared memory of a kernel");
      return true;
    });
  }

 private:
  PerDevice<bool> raised_;
};

}  // namespace sluice::cuda
