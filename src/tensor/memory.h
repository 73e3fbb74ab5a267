// Memory for tensors, on the host or on a device. Thread-safe. ops::Device says which memories its ops work on
// (ops/device.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* allocate(size_t bytes) = 0;  // zeroed, aligned to 64 or more; throws Error(kOutOfMemory)
  virtual void release(std::byte* data, size_t bytes) noexcept = 0;
  // Copies within this memory, or between it and host memory in either direction. The copy is done when the call
  // returns. It is not ordered with the ops and copies of queues (ops/device.h): call Queue::wait() first to order it.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual bool host_accessible() const = 0;  // whether the host can read and write it in place
  virtual size_t available() const = 0;      // bytes that can still be allocated
  virtual size_t total() const = 0;          // bytes in all, including those that other programs use
};

// The host's memory. Allocations are aligned to 64 bytes; those of 2 MiB and more are aligned to 2 MiB, and huge pages
// are advised for them. available() is MemAvailable of /proc/meminfo, limited by the process's cgroups (base/cgroup.h).
Memory& host_memory();

}  // namespace sluice
