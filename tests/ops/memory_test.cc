// Queues of every backend: copies to and from pinned memory run in order.
#include "ops/testing.h"

namespace sluice::ops::memory_test {
namespace {

class MemoryTest : public testing::TestWithParam<const Backend*> {};

// Copies of every size that a step has, and larger ones. Devices make small copies with a kernel. Some copies start at
// addresses that are not multiples of 16 bytes.
TEST_P(MemoryTest, CopiesBothWaysInOrder) {
  std::mt19937 random(7);
  ops::Device& owner = GetParam()->open(0);
  ThreadPool threads(1, false);
  const auto queue = owner.make_queue(threads);
  constexpr size_t kMost = 300'000, kMargin = 64;
  Buffer device(kMost + kMargin, owner.memory()), there(kMost + kMargin, owner.pinned_memory()),
      back(kMost + kMargin, owner.pinned_memory());
  const auto bytes_of = [](Buffer& b) { return reinterpret_cast<unsigned char*>(b.data()); };
  for (const size_t bytes : {1, 3, 16, 17, 100, 4096, 65'535, 65'536, 65'537, 300'000}) {
    for (const size_t from : {size_t{0}, size_t{4}, size_t{random() % 16}}) {
      const size_t to = from % 4 == 0 ? from : random() % 16;
      SCOPED_TRACE(fmt::format("{} bytes from {} to {}", bytes, from, to));
      for (size_t i = 0; i < kMost + kMargin; ++i) {
        bytes_of(there)[i] = static_cast<unsigned char>(random());
        bytes_of(back)[i] = static_cast<unsigned char>(i);
      }
      queue->copy_async(device.data() + to, there.data() + from, bytes);
      queue->copy_async(back.data() + to, device.data() + to, bytes);
      queue->wait();
      EXPECT_EQ(std::memcmp(back.data() + to, there.data() + from, bytes), 0);
      for (size_t i = 0; i < to; ++i) ASSERT_EQ(bytes_of(back)[i], static_cast<unsigned char>(i));
      for (size_t i = to + bytes; i < kMost + kMargin; ++i) ASSERT_EQ(bytes_of(back)[i], static_cast<unsigned char>(i));
    }
  }
}

SLUICE_FOR_EVERY_BACKEND(MemoryTest);

}  // namespace
}  // namespace sluice::ops::memory_test
