// Reports how much memory the process's control groups (cgroups) allow: the limits of containers and services.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice {

struct CgroupMemory {
  size_t total = SIZE_MAX;      // smallest limit of the groups that contain the process
  size_t available = SIZE_MAX;  // smallest remaining room of any group; file pages can be dropped and count as free
};

// Reads the limits of this process from cgroups version 1 and 2. Groups above its own count if they are mounted. Both
// fields are SIZE_MAX when nothing is limited. `root` is the folder that contains proc and sys: "/" except in tests.
CgroupMemory cgroup_memory(const std::string& root = "/");

}  // namespace sluice
