// The processor time that work takes: what else the machine does hardly counts.
#pragma once

#include <time.h>

namespace sluice {

// Seconds of this thread on its CPU.
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
