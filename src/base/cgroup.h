// What control groups (cgroups) leave a process of the machine's memory: the limits of containers and services.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

struct CgroupMemory {
  size_t total = SIZE_MAX;      // the smallest limit of the groups that the process is in
  size_t available = SIZE_MAX;  // what the fullest of them has left; pages of files can be dropped and count as left
};

// Of this process, from versions 1 and 2 of cgroups, with the groups above its own as far as they are mounted. SIZE_MAX
// where nothing is limited. `root` is the folder with proc and sys: "/", but in tests.
CgroupMemory cgroup_memory(const std::string& root = "/");

}  // namespace sluice
