// Reads NUMA nodes from sysfs, and binds shares of memory to nodes with the mbind system call instead of libnuma.
#include "base/numa.h"

#include <fmt/core.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>

#include "base/check.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kMostCpus = 1 << 16;
constexpr size_t kPage = 4096;

std::atomic<int> parts_of_memory{1};

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::vector<int> read_list(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  return std::getline(in, text) ? parse_cpu_list(text) : std::vector<int>();
}

std::vector<NumaNode> find_nodes() {
  const std::vector<int> allowed = allowed_cpus();
  std::vector<NumaNode> nodes;
  for (const int id : read_list("/sys/devices/system/node/online")) {
    NumaNode node{.id = id, .cpus = {}};
    for (const int cpu : read_list(fmt::format("/sys/devices/system/node/node{}/cpulist", id))) {
      if (std::binary_search(allowed.begin(), allowed.end(), cpu)) node.cpus.push_back(cpu);
    }
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({.id = 0, .cpus = allowed});
  return nodes;
}

}  // namespace

const std::vector<NumaNode>& numa_nodes() {
  static const std::vector<NumaNode> nodes = find_nodes();
  return nodes;
}

std::vector<int> cpus_by_node() {
  std::vector<int> cpus;
  for (const NumaNode& node : find_nodes()) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  return cpus;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    int first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc() || first < 0) return {};
    int last = first;
    if (next < end && *next == '-') {
      const auto range = std::from_chars(next + 1, end, last);
      if (range.ec != std::errc() || last < first) return {};
      next = range.ptr;
    }
    if (last >= kMostCpus || (next < end && *next != ',')) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = next < end ? next + 1 : end;
  }
  return cpus;
}

int parse_numa(const std::string& option) {
  if (option == "off") return 1;
  if (option == "auto") return std::min(static_cast<int>(numa_nodes().size()), kMaxNumaParts);
  int parts = 0;
  const char* end = option.data() + option.size();
  const auto [next, error] = std::from_chars(option.data(), end, parts);
  if (error != std::errc() || next != end || parts < 1 || parts > kMaxNumaParts) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--numa: unknown value '{}' (expected one of: off, auto, or a number from 1 to {})", option,
                            kMaxNumaParts));
  }
  return parts;
}

void set_memory_parts(int parts) { parts_of_memory = parts; }
int memory_parts() { return parts_of_memory; }

const NumaNode& numa_node_of(int part) {
  CHECK(part >= 0, "part {}", part);
  return numa_nodes()[static_cast<size_t>(part) % numa_nodes().size()];
}

bool spread_over_nodes(std::byte* data, size_t bytes, int parts) {
  const auto place = [&](int part) { return bytes / kPage * static_cast<size_t>(part) / parts * kPage; };
  for (int part = 0; part < parts; ++part) {
    const size_t begin = place(part), end = part + 1 == parts ? bytes : place(part + 1);
    const int node = numa_node_of(part).id;
    constexpr int kBits = 8 * sizeof(unsigned long);
    unsigned long mask[kMostCpus / kBits] = {};
    mask[node / kBits] = 1ul << (node % kBits);
    // The kernel uses one bit less than the length it is given.
    if (end > begin && ::syscall(SYS_mbind, data + begin, end - begin, MPOL_PREFERRED, mask, node + 2, 0) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace sluice
