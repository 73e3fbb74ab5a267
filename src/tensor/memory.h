// Where the bytes of tensors lie: the host's memory, or a device's. Backends say which they work on (ops/ops.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* allocate(size_t bytes) = 0;  // zeroed, aligned to 64 or more; throws Error(kOutOfMemory)
  virtual void release(std::byte* data, size_t bytes) noexcept = 0;
  // Between this memory and itself or the host, either way; after every op that was called before. Done on return.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  // The same, in order with the ops, but done only when wait() returns: until then the host must leave its side alone,
  // which lies in the backend's staging memory (ops/ops.h).
  virtual void copy_later(void* to, const void* from, size_t bytes) { copy(to, from, bytes); }
  virtual void wait() {}  // for every op and copy that was called before
  // A point in their order: wait_for() returns when what was called before mark() is done, whatever came later.
  virtual uint64_t record_event() { return 0; }
  virtual void wait_for(uint64_t) { wait(); }
  virtual bool host_accessible() const = 0;  // may the host read and write it in place?
  virtual size_t available() const = 0;      // bytes that may still be allocated
  virtual size_t total() const = 0;          // bytes there are, others' included
};

// Ordinary memory: 64-byte-aligned, from 2 MiB on aligned to 2 MiB with huge pages advised. Available is MemAvailable
// of /proc/meminfo, bounded by what the process's cgroups leave (base/cgroup.h).
Memory& host_memory();

}  // namespace sluice
