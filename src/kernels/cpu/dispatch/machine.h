// Limits of the machine, measured with the threads that will work: what benchmarks print their results against.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace sluice::kernels {

// Bytes or operations (a multiply-add is two) per second of all threads together; 0 where the CPU has no such
// instruction.
struct MachineLimits {
  double read_bandwidth;  // reading memory that fits no cache; 0 where there is no room for twice as much
  double fma;             // fp32: the widest fused multiply-adds
  double bf16_dot;        // vdpbf16ps
  double int8_dot;        // vpdpbusd
  double amx_bf16;        // tdpbf16ps on whole tiles
  double amx_int8;        // tdpbsud on whole tiles
};
// Takes about a second.
MachineLimits measure_machine(ThreadPool& pool);

// Bytes of memory that, read in turn, do not stay in the last-level caches of this process's CPUs: three times their
// size. Half of a server's bandwidth "measured" on less is its cache's.
int64_t uncached_bytes();

double now();  // seconds
// From here on time is what the calling thread spent on its CPU: steady on a busy machine, but for one thread only.
void use_cpu_time();

// Seconds of the fastest of several runs of body(), which is repeated for about `budget` seconds.
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
