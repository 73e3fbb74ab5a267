// Times individual ops: a table whose slots call those of another table and read a clock before and after.
#pragma once

#include <string>
#include <vector>

#include "ops/ops.h"

namespace sluice::ops {

struct OpTime {
  std::string op;  // op and the shape of its first tensor ("glu 1x5632") or weight ("matmul q4_0 5632x2048")
  int64_t calls = 0;
  double seconds = 0;
  double best = 1e30;  // seconds of the fastest call
  double bytes = 0;    // bytes read and written: weights, tensors, keys and values that attention reads; 0: not counted
};

// Returns a table that times every slot of `ops` with the clock `now` (seconds). There is one such table at a time: the
// next call replaces it.
const Ops& timed(const Ops& ops, double (*now)());
// Returns the times since the last call, in order of first use. The last entry, "between ops", is the time between the
// end of one op and the start of the next.
std::vector<OpTime> take_times();

}  // namespace sluice::ops
