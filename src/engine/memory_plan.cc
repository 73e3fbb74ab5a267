// The table, and how much memory there is.
#include "engine/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

namespace sluice {
namespace {

// A number in a file such as /sys/fs/cgroup/memory.max; `fallback` when it is absent or "max".
size_t read_number(const char* path, size_t fallback) {
  std::ifstream in(path);
  size_t value = 0;
  return in >> value ? value : fallback;
}

}  // namespace

size_t MemoryPlan::total() const {
  size_t sum = 0;
  for (const Row& row : rows) sum += row.bytes;
  return sum;
}

std::string MemoryPlan::table() const {
  std::string out;
  for (const Row& row : rows) out += fmt::format("  {:<14}{:>12}  {}\n", row.what, format_bytes(row.bytes), row.detail);
  out += fmt::format("  {:<14}{:>12}  of {} available", "total", format_bytes(total()), format_bytes(available_bytes));
  if (mapped_bytes > 0) out += fmt::format("; {} more are read in place from the file", format_bytes(mapped_bytes));
  return out + "\n";
}

size_t available_memory() {
  size_t available = SIZE_MAX;
  std::ifstream info("/proc/meminfo");
  for (std::string key, unit; info >> key;) {
    size_t kib = 0;
    info >> kib;
    std::getline(info, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const size_t limit = read_number("/sys/fs/cgroup/memory.max", SIZE_MAX);
  if (limit != SIZE_MAX) {
    const size_t used = read_number("/sys/fs/cgroup/memory.current", 0);
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

std::string format_bytes(size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

}  // namespace sluice
