// Tests the slab: what is cut from it, and what is not.
#include "tensor/slab.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace sluice::slab_test {
namespace {

// Host memory that knows what is allocated from it.
class CountedMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override { return *live.insert(host_memory().allocate(bytes)).first; }
  void release(std::byte* data, size_t bytes) noexcept override {
    live.erase(data);
    host_memory().release(data, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override { host_memory().copy(to, from, bytes); }
  bool host_accessible() const override { return true; }
  size_t available() const override { return host_memory().available(); }
  size_t total() const override { return host_memory().total(); }

  std::set<std::byte*> live;
};

TEST(Slab, GivesOutPartsThatDoNotOverlap) {
  CountedMemory memory;
  Slab slab(4 * Slab::kAlignment, memory);
  std::vector<Buffer> parts;
  for (const size_t bytes : {size_t{1}, Slab::kAlignment, Slab::kAlignment + 1}) parts.emplace_back(bytes, slab);
  EXPECT_EQ(memory.live.size(), 1u);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parts[i].data()) % 64, 0u);
    for (size_t at = 0; at < parts[i].size(); ++at) {
      ASSERT_EQ(parts[i].data()[at], std::byte{0}) << i << ", " << at;
      parts[i].data()[at] = std::byte{0xff};
    }
  }
}

TEST(Slab, HasMemoryOfItsOwnForWhatDoesNotFit) {
  CountedMemory memory;
  {
    Slab slab(1000, memory);
    const Buffer large(2000, slab);
    EXPECT_EQ(memory.live.size(), 2u);
    const Buffer fits(100, slab);
    EXPECT_EQ(memory.live.size(), 2u);
    const Buffer rest(600, slab);
    EXPECT_EQ(memory.live.size(), 3u) << "512 of 1000 bytes are taken";
  }
  EXPECT_TRUE(memory.live.empty());
}

TEST(Slab, MayBeEmpty) {
  CountedMemory memory;
  Slab slab(0, memory);
  const Buffer one(10, slab);
  EXPECT_EQ(memory.live.size(), 1u);
}

}  // namespace
}  // namespace sluice::slab_test
