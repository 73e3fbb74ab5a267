// NUMA nodes: which CPUs are close to which memory, and the parts into which the program divides its work.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // CPUs of the node that this process may run on, ascending and not empty
};

// Returns the nodes whose CPUs this process may use, at least one. Source: /sys/devices/system/node.
const std::vector<NumaNode>& numa_nodes();

// The CPUs that this process may run on, node by node. Unlike numa_nodes() it asks each time: a process that will bind
// itself to some of them must not have that function remember all.
std::vector<int> cpus_by_node();

// Parses a CPU list as the kernel writes it: "0-3,8" gives 0, 1, 2, 3, 8. Returns an empty list when the text is
// malformed.
std::vector<int> parse_cpu_list(std::string_view text);

// Returns the number of parts that the value of --numa requests: 1 for "off", one per node for "auto", or a number from
// 1 to kMaxNumaParts. With a number, a node may serve several parts or none. Throws Error(kInvalidRequest).
inline constexpr int kMaxNumaParts = 16;
int parse_numa(const std::string& option);

// Sets the number of parts of large host allocations made from now on. The initial value is 1.
void set_memory_parts(int parts);
int memory_parts();

// Returns the node that serves a part.
const NumaNode& numa_node_of(int part);

// Divides the untouched pages of a block into `parts` consecutive shares of equal size. Each share is placed on its
// part's node while there is room. Returns false when the system does not allow it; pages are then placed where they
// are first touched.
bool spread_over_nodes(std::byte* data, size_t bytes, int parts);

}  // namespace sluice
