// Where the bytes of tensors lie: in the host's memory or in a device's. Thread-safe. ops::Device says which memories
// its ops work on (ops/device.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* allocate(size_t bytes) = 0;  // zeroed, aligned to 64 or more; throws Error(kOutOfMemory)
  virtual void release(std::byte* data, size_t bytes) noexcept = 0;
  // Between this memory and itself or the host's, either way; done on return. Not ordered with the ops and copies of
  // queues (ops/device.h): whoever waits for those calls Queue::wait() first.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual bool host_accessible() const = 0;  // may the host read and write it in place?
  virtual size_t available() const = 0;      // bytes that may still be allocated
  virtual size_t total() const = 0;          // bytes there are, others' included
};

// Ordinary memory: 64-byte-aligned, from 2 MiB on aligned to 2 MiB with huge pages advised. Available is MemAvailable
// of /proc/meminfo, bounded by what the process's cgroups leave (base/cgroup.h).
Memory& host_memory();

}  // namespace sluice
