// Measures this process's memory, for tests that bound it.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace sluice::testing {

// How far the resident memory has risen above its size at construction, at most.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
    start_ = status_bytes("VmRSS:");
  }
  size_t growth_bytes() const {
    const size_t peak = status_bytes("VmHWM:");
    return peak > start_ ? peak - start_ : 0;
  }

 private:
  static size_t status_bytes(const std::string& field) {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word) {
      size_t kib = 0;
      if (word == field && status >> kib) return kib << 10;
    }
    return 0;
  }
  size_t start_ = 0;
};

}  // namespace sluice::testing
