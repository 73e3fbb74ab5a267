// Tests NUMA support: CPU lists, values of --numa, and memory divided into shares.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "sluice/error.h"

namespace sluice::numa_test {
namespace {

TEST(Numa, ParsesListsOfCpus) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
  for (const char* text : {"", "a", "3-", "3-1", "-1", "0-99999999", "1;2"}) {
    EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
  }
}

TEST(Numa, TheProcessHasANodeAtLeast) {
  ASSERT_FALSE(numa_nodes().empty());
  for (const NumaNode& node : numa_nodes()) EXPECT_FALSE(node.cpus.empty());
  EXPECT_EQ(&numa_node_of(static_cast<int>(numa_nodes().size())), &numa_nodes()[0]);
}

TEST(Numa, OptionNamesParts) {
  EXPECT_EQ(parse_numa("off"), 1);
  EXPECT_GE(parse_numa("auto"), 1);
  EXPECT_EQ(parse_numa("3"), 3);
  for (const char* text : {"", "0", "17", "-1", "2x", "on"}) EXPECT_THROW(parse_numa(text), Error) << text;
}

TEST(Numa, MemoryInSharesIsUsable) {
  constexpr size_t kBytes = (5u << 20) + 4096;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  spread_over_nodes(static_cast<std::byte*>(memory), kBytes, 3);  // may fail where the system forbids it
  std::memset(memory, 7, kBytes);
  EXPECT_EQ(static_cast<const char*>(memory)[kBytes - 1], 7);
  ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace sluice::numa_test
