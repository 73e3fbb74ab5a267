// Measures the machine's limits with the threads that will work. Benchmarks compare their results with these limits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace sluice::kernels {

// Bytes or operations per second of all threads together; a multiply-add counts as two operations. 0 where the CPU
// lacks the instruction.
struct MachineLimits {
  double read_bandwidth;  // reading memory larger than any cache; 0 when twice that size does not fit in memory
  double fma;             // fp32, with the widest fused multiply-adds
  double bf16_dot;        // vdpbf16ps
  double int8_dot;        // vpdpbusd
  double amx_bf16;        // tdpbf16ps on whole tiles
  double amx_int8;        // tdpbsud on whole tiles
};
// Takes about one second.
MachineLimits measure_machine(ThreadPool& pool);

// Returns a size whose sequential reads do not stay in the last-level caches of this process's CPUs: three times their
// total. With less, up to half of a server's measured "bandwidth" would be its cache's.
int64_t uncached_bytes();

double now();  // seconds
// After this call, now() returns the CPU time of the calling thread: steady on a busy machine, but valid for one thread
// only.
void use_cpu_time();

// Returns the seconds of the fastest run of body(), which is repeated for about `budget` seconds.
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

}  // namespace sluice::kernels
