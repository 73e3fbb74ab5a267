// Nodes of memory (NUMA): which CPUs are near to which memory, and the parts a program divides its work into.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending, of those this process may run on; not empty
};

// The nodes whose CPUs this process may use, one at least. Source: /sys/devices/system/node.
const std::vector<NumaNode>& numa_nodes();

// "0-3,8" to 0, 1, 2, 3, 8, as the kernel writes lists of CPUs; empty where the text is no such list.
std::vector<int> parse_cpu_list(std::string_view text);

// Parts that `option` of --numa asks for: 1 for "off", one per node for "auto", or a number from 1 to kMaxNumaParts,
// for which nodes count several times or not at all. Throws Error(kInvalidRequest).
inline constexpr int kMaxNumaParts = 16;
int parse_numa(const std::string& option);

// Parts of large blocks of host memory from now on; 1 at first.
void set_memory_parts(int parts);
int memory_parts();

// The node of a part.
const NumaNode& numa_node_of(int part);

// Divides the pages of a block, not yet touched, into `parts` consecutive shares of equal size, which are to lie on the
// nodes of their parts as long as there is room. False where the system does not allow it: pages then lie where they
// are touched first.
bool spread_over_nodes(std::byte* data, size_t bytes, int parts);

}  // namespace sluice
