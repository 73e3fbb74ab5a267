// One run of the simulation: the whole server over a simulated model, on the simulated machine.
#pragma once

#include <cstdint>
#include <string>

#include "simulation/world.h"

namespace sluice::simulation {

struct Result {
  bool passed = false;
  uint64_t events = 0;
  uint64_t trace = 0;  // equal for equal seeds
  double seconds = 0;  // of the simulated clock
  Counts counts;
};

// Writes the files of the simulated model. This process removes them when it ends. run_seed() calls this, too, so it is
// needed only before seeds run in several processes.
void write_model();

// Runs a seed for about this many events in a process of its own, which begins as all others do. What went wrong is on
// stderr, with the seed.
Result run_seed(uint64_t seed, uint64_t events);

}  // namespace sluice::simulation
