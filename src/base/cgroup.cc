// Finds the folders of the process's control groups. /proc/self/cgroup gives the path of the group in each hierarchy.
// /proc/self/mountinfo says where a hierarchy is mounted, and which of its groups is the root of the mount. A container
// that sees only its own group has two different paths; the mounted group is then the container's.
#include "base/cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace sluice {
namespace {

namespace fs = std::filesystem;

// File and field names in one version of cgroups; null where the version has no such entry.
struct Version {
  const char* filesystem;
  const char* limit;      // file with the hard limit in bytes
  const char* slowing;    // file with the number of bytes above which the kernel throttles the group's processes
  const char* used;       // file with the bytes in use
  const char* inherited;  // line of memory.stat with the smallest limit of this group and all groups above it
  const char* pages[2];   // lines of memory.stat that count the file pages of the group and those below it
};
constexpr Version kV1 = {.filesystem = "cgroup",
                         .limit = "memory.limit_in_bytes",
                         .slowing = nullptr,
                         .used = "memory.usage_in_bytes",
                         .inherited = "hierarchical_memory_limit",
                         .pages = {"total_active_file", "total_inactive_file"}};
constexpr Version kV2 = {.filesystem = "cgroup2",
                         .limit = "memory.max",
                         .slowing = "memory.high",
                         .used = "memory.current",
                         .inherited = nullptr,
                         .pages = {"active_file", "inactive_file"}};

bool lists_memory(std::string_view controllers) {
  std::istringstream in{std::string(controllers)};
  for (std::string name; std::getline(in, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

// Returns the process's group in the hierarchy that limits memory, a path such as /system.slice/sluice.service.
std::optional<std::string> group_path(const fs::path& root, const Version& version) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string id, controllers, path; std::getline(in, id, ':') && std::getline(in, controllers, ':');) {
    std::getline(in, path);
    if (&version == &kV2 ? id == "0" && controllers.empty() : lists_memory(controllers)) return path;
  }
  return {};
}

struct Mount {
  fs::path group;   // group that the mount point shows
  fs::path folder;  // the mount point
};

std::optional<Mount> find_mount(const fs::path& root, const Version& version) {
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    // Format: "35 31 0:32 GROUP FOLDER OPTIONS [TAGS...] - FILESYSTEM SOURCE OPTIONS"
    std::istringstream fields(line);
    std::string skipped, group, folder, filesystem, options;
    fields >> skipped >> skipped >> skipped >> group >> folder;
    while (fields >> skipped && skipped != "-") {
    }
    fields >> filesystem >> skipped >> options;
    if (filesystem != version.filesystem || (&version == &kV1 && !lists_memory(options))) continue;
    return Mount{.group = group, .folder = root / fs::path(folder).relative_path()};
  }
  return {};
}

// Reads a number from a file. Returns `fallback` when the file is absent or says "max".
size_t read_number(const fs::path& path, size_t fallback) {
  std::ifstream in(path);
  size_t value = 0;
  return in >> value ? value : fallback;
}

// Lowers `memory` to what one group allows.
void apply_group(const fs::path& folder, const Version& version, CgroupMemory& memory) {
  size_t limit = read_number(folder / version.limit, SIZE_MAX), droppable = 0;
  if (version.slowing != nullptr) limit = std::min(limit, read_number(folder / version.slowing, SIZE_MAX));
  std::ifstream stat(folder / "memory.stat");
  size_t value = 0;
  for (std::string key; stat >> key >> value;) {
    if (key == version.pages[0] || key == version.pages[1]) droppable += value;
    if (version.inherited != nullptr && key == version.inherited) limit = std::min(limit, value);
  }
  if (limit == SIZE_MAX) return;
  const size_t used = read_number(folder / version.used, 0), kept = used - std::min(used, droppable);
  memory.total = std::min(memory.total, limit);
  memory.available = std::min(memory.available, limit - std::min(limit, kept));
}

}  // namespace

CgroupMemory cgroup_memory(const std::string& root) {
  CgroupMemory memory;
  for (const Version* version : {&kV1, &kV2}) {
    const std::optional<std::string> path = group_path(root, *version);
    const std::optional<Mount> mount = find_mount(root, *version);
    if (!path || !mount) continue;
    fs::path folder = mount->folder;
    apply_group(folder, *version, memory);
    const fs::path below = fs::path(*path).lexically_relative(mount->group);
    if (below.empty() || *below.begin() == "..") continue;  // only the mounted group is visible
    for (const fs::path& name : below) apply_group(folder /= name, *version, memory);
  }
  return memory;
}

}  // namespace sluice
