// Tests the memory limits of cgroups, read from folders that imitate /proc and /sys.
#include "base/cgroup.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace sluice::cgroup_test {
namespace {

constexpr size_t kMiB = 1u << 20;

std::string mib(size_t n) { return std::to_string(n * kMiB) + "\n"; }

class Cgroup : public ::testing::Test {
 protected:
  // Writes the process's group in each hierarchy, and where the hierarchies are mounted.
  void process(const std::string& groups, const std::string& mounts) const {
    root_.write("proc/self/cgroup", groups);
    root_.write("proc/self/mountinfo", "23 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw\n" + mounts);
  }
  void v1(const std::string& folder, const std::string& limit, size_t used, const std::string& stat) const {
    root_.write(folder + "/memory.limit_in_bytes", limit);
    root_.write(folder + "/memory.usage_in_bytes", mib(used));
    root_.write(folder + "/memory.stat", stat);
  }
  void v2(const std::string& folder, const std::string& max, const std::string& high, size_t used,
          const std::string& stat = "") const {
    root_.write(folder + "/memory.max", max);
    root_.write(folder + "/memory.high", high);
    root_.write(folder + "/memory.current", mib(used));
    root_.write(folder + "/memory.stat", stat);
  }
  void expect(size_t total, size_t available) const {
    const CgroupMemory memory = cgroup_memory(root_.path());
    EXPECT_EQ(memory.total, total);
    EXPECT_EQ(memory.available, available);
  }

  testing::TempFolder root_;
};

constexpr const char* kMountedV2 = "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kMountedV1 =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST_F(Cgroup, NothingIsLimitedWithoutThem) {
  expect(SIZE_MAX, SIZE_MAX);
  process("", "");
  expect(SIZE_MAX, SIZE_MAX);
  process("0::/user.slice\n", kMountedV2);
  expect(SIZE_MAX, SIZE_MAX);
}

// Docker and Kubernetes run containers this way: the process sees its own group as the root.
TEST_F(Cgroup, V2Container) {
  process("0::/\n", kMountedV2);
  v2("sys/fs/cgroup", mib(700), "max\n", 100);
  expect(700 * kMiB, 600 * kMiB);
}

TEST_F(Cgroup, PagesOfFilesCountAsFree) {
  process("0::/\n", kMountedV2);
  v2("sys/fs/cgroup", mib(700), "max\n", 690,
     "anon 10485760\nfile 104857600\ninactive_file 314572800\nactive_file 209715200\n");
  expect(700 * kMiB, 510 * kMiB);
}

TEST_F(Cgroup, V2GroupsAboveBindToo) {
  process("0::/system.slice/sluice.service\n", kMountedV2);
  v2("sys/fs/cgroup/system.slice", mib(900), "max\n", 800);
  v2("sys/fs/cgroup/system.slice/sluice.service", mib(500), "max\n", 100);
  expect(500 * kMiB, 100 * kMiB);
}

TEST_F(Cgroup, V2WhatSlowsDownIsALimit) {
  process("0::/sluice\n", kMountedV2);
  v2("sys/fs/cgroup/sluice", "max\n", mib(300), 400);
  expect(300 * kMiB, 0);
}

TEST_F(Cgroup, V2WithoutALimit) {
  process("0::/sluice\n", kMountedV2);
  v2("sys/fs/cgroup/sluice", "max\n", "max\n", 400);
  expect(SIZE_MAX, SIZE_MAX);
}

TEST_F(Cgroup, V1) {
  process("9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/other\n0::/\n", kMountedV1);
  v1("sys/fs/cgroup/memory", "9223372036854771712\n", 4000, "hierarchical_memory_limit 9223372036854771712\n");
  v1("sys/fs/cgroup/memory/a", mib(800), 300, "active_file 7\ntotal_active_file 104857600\n");
  v1("sys/fs/cgroup/memory/a/b", mib(500), 200, "total_active_file 10485760\ntotal_inactive_file 20971520\n");
  expect(500 * kMiB, 330 * kMiB);
}

// A container that shares the host's view of groups. Only its own group is mounted, and its path starts at the host's
// root.
TEST_F(Cgroup, V1OnlyTheOwnGroupIsMounted) {
  process("4:memory:/docker/1f/in\n",
          "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro,relatime master:9 - cgroup cgroup rw,memory\n");
  v1("sys/fs/cgroup/memory", mib(800), 300, "");
  v1("sys/fs/cgroup/memory/in", mib(500), 10, "");
  expect(500 * kMiB, 490 * kMiB);
}

// Groups above the mounted one still pass on their limit.
TEST_F(Cgroup, V1LimitThatIsInherited) {
  process("4:memory:/docker/1f\n",
          "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n");
  v1("sys/fs/cgroup/memory", "9223372036854771712\n", 100, "hierarchical_memory_limit 629145600\n");
  expect(600 * kMiB, 500 * kMiB);
}

TEST_F(Cgroup, AGroupOutsideOfTheMountIsTheMountedOne) {
  process("0::/../other\n", "30 23 0:27 /mine /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  v2("sys/fs/cgroup", mib(700), "max\n", 0);
  v2("sys/fs/other", mib(1), "max\n", 0);
  expect(700 * kMiB, 700 * kMiB);
}

}  // namespace
}  // namespace sluice::cgroup_test
