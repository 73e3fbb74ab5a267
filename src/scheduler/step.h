// A step of the scheduler under construction.
#pragma once

#include <vector>

#include "scheduler/scheduler.h"

namespace sluice {

struct Scheduler::Step {
  ScheduledBatch out;
  uint64_t number = 0;
  int tokens_left = 0;
  int rows_left = 0;
  std::vector<BlockId> copy_sources;  // kept held until the step is built, so that no block is source and target
};

}  // namespace sluice
