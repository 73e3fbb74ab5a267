// The simulated machine's memory: what the program allocates lies at the same addresses in every run, is counted, and
// may be refused.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::simulation {

struct MemoryUse {
  int64_t blocks = 0, bytes = 0;  // allocated and not freed, without the machine's own
  int64_t faulty_bytes = 0;       // those that faulty threads allocated
  uint64_t refused = 0;           // allocations that failed on purpose
  uint64_t allocations = 0;       // so far
};
MemoryUse memory_use();

// The numbers of the first blocks that were allocated after the first `since` ones and are not freed.
std::vector<uint64_t> blocks_since(uint64_t since);
// This allocation of a faulty thread fails, or the first one after it. 0: none.
void refuse_allocation(uint64_t number);
// Raises SIGTRAP when this allocation begins, so that a debugger shows who made it.
void stop_at_allocation(uint64_t number);

}  // namespace sluice::simulation
