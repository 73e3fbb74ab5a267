// System calls of the program that may fail: those that need a resource (a descriptor, memory, space on a disk, a
// thread) or a peer. A call that fails only when it is used wrongly is not counted, nor is one that releases something.
#pragma once

#include <cstdint>

namespace sluice::simulation {

struct CallUse {
  uint64_t calls = 0;    // of faulty threads, so far
  uint64_t refused = 0;  // calls that failed on purpose
};
CallUse call_use();

// This call fails, or the first one after it. 0: none.
void refuse_call(uint64_t number);
// Counts a call of the running thread. True: it must fail, and errno says how.
bool refuses_call(int error);

// Descriptors of this process that are open, simulated ones included.
int open_descriptors();

}  // namespace sluice::simulation
