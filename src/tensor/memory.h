// Where the bytes of tensors lie: the host's memory, or a device's. Backends say which they work on (ops/ops.h).
#pragma once

#include <cstddef>

namespace sluice {

class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* allocate(size_t bytes) = 0;  // zeroed, aligned to 64 or more; throws Error(kOutOfMemory)
  virtual void release(std::byte* data, size_t bytes) noexcept = 0;
  // Between this memory and itself or the host, either way; after every op that was called before. Done on return.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
};

// Ordinary memory: 64-byte-aligned, from 2 MiB on aligned to 2 MiB with huge pages advised.
Memory& host_memory();

}  // namespace sluice
