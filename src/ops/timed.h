// Times ops one by one: a table whose slots call those of another table and look at a clock before and after.
#pragma once

#include <string>
#include <vector>

#include "ops/ops.h"

namespace sluice::ops {

struct OpTime {
  std::string op;  // and what it worked on: "glu 1x5632", its first tensor; "matmul q4_0 5632x2048", its weight
  int64_t calls = 0;
  double seconds = 0;
  double best = 1e30;  // seconds of the fastest call
  double bytes = 0;  // read and written: weights, tensors, the cached keys and values an attention sees; 0: not counted
};

// `ops` with every slot timed by `now` (seconds). One such table at a time: the next call replaces it.
const Ops& timed(const Ops& ops, double (*now)());
// What was timed since the last call, in the order of first use; the last entry, "between ops", is the time from the
// end of one op to the beginning of the next.
std::vector<OpTime> take_times();

}  // namespace sluice::ops
