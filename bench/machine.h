// Limits of the machine the benchmarks run on, measured in the same run with the same threads.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace sluice::bench {

// Seconds of the fastest of several runs of body(), which is repeated for about `budget` seconds.
template <class F>
double fastest(double budget, F&& body);

double now();  // seconds
// From here on time is what the calling thread spent on its CPU: steady on a busy machine, but for one thread only.
void use_cpu_time();

double read_bandwidth(ThreadPool& pool);  // bytes per second, reading memory that fits no cache
double fma_peak(ThreadPool& pool);        // fp32 operations per second: the widest fused multiply-adds of this CPU
double bf16_peak(ThreadPool& pool);       // operations per second of vdpbf16ps; 0 where the CPU lacks it

template <class F>
double fastest(double budget, F&& body) {
  body();
  double best = 1e30;
  for (const double end = now() + budget; now() < end;) {
    const double begin = now();
    body();
    best = std::min(best, now() - begin);
  }
  return best;
}

}  // namespace sluice::bench
