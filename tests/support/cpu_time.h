// Measures the CPU time of work, so that other load on the machine hardly counts.
#pragma once

#include <time.h>

namespace sluice {

// CPU seconds of this thread.
template <class Work>
double cpu_seconds(Work&& work) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

}  // namespace sluice
