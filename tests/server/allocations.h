// The allocations of this program, which testing.cc counts and lets fail.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice {

struct Allocations {
  static inline std::atomic<int64_t> left{-1};          // before the one that fails; negative: none fails
  static inline std::atomic<bool> none_left{false};     // all fail
  static inline thread_local bool exempt = false;       // allocations of this thread never fail
  static inline thread_local bool uncounted = false;    // nor do they count as memory of the server
  static inline std::atomic<int64_t> live{0}, peak{0};  // bytes
};

}  // namespace sluice
