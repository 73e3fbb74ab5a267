// One allocation that many others are cut from. A GPU's driver takes about a millisecond for each allocation while
// copies are under way, and holds them up meanwhile.
#pragma once

#include <mutex>

#include "tensor/tensor.h"

namespace sluice {

// Gives out parts of one zeroed allocation, and memory of its own to what does not fit. What is released is not given
// out again. Must outlive everything that is allocated from it.
class Slab final : public Memory {
 public:
  Slab(size_t bytes, Memory& memory) : memory_(memory), slab_(bytes, memory) {}

  std::byte* allocate(size_t bytes) override;
  void release(std::byte* data, size_t bytes) noexcept override;
  void copy(void* to, const void* from, size_t bytes) override { memory_.copy(to, from, bytes); }
  bool host_accessible() const override { return memory_.host_accessible(); }
  size_t available() const override { return memory_.available(); }
  size_t total() const override { return memory_.total(); }

  static constexpr size_t kAlignment = 512;

 private:
  Memory& memory_;
  const Buffer slab_;
  std::mutex mutex_;
  size_t used_ = 0;
};

}  // namespace sluice
