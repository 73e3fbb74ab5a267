// The program `simulation`: runs seeds until a number of events has happened.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "simulation/machine/memory.h"
#include "simulation/simulation.h"

int main(int argc, char** argv) {
  using namespace sluice::simulation;
  CLI::App app("Runs the server over a simulated model, machine and network, from seeds. Prints the seed that fails.");
  uint64_t seed = 1, events = 1'000'000, per_seed = 30'000;
  uint64_t allocation = 0;
  bool once = false, keep_going = false, traces = false;
  app.add_option("--seed", seed, "first seed");
  app.add_option("--events", events, "events of all seeds together");
  app.add_option("--events-per-seed", per_seed, "events of one seed");
  app.add_flag("--once", once, "run only the first seed");
  app.add_flag("--traces", traces, "print the trace of each seed");
  app.add_flag("--keep-going", keep_going, "go on after a seed that fails");
  app.add_option("--stop-at-allocation", allocation, "raise SIGTRAP there, for a debugger that follows the child");
  CLI11_PARSE(app, argc, argv);
  stop_at_allocation(allocation);

  const auto begin = std::chrono::steady_clock::now();
  uint64_t done = 0, seeds = 0, failed = 0;
  double simulated = 0;
  Counts counts;
  do {
    if (once) fmt::print("seed {}: {}\n", seed, describe(make_plan(seed)));
    const Result result = run_seed(seed, per_seed);
    if (!result.passed) {
      fmt::print("seed {} fails: run it again with --once --seed {} --events-per-seed {}\n", seed, seed, per_seed);
      if (!keep_going) return 1;
      ++failed;
    }
    if (once || traces) fmt::print("seed {} trace {:016x}\n", seed, result.trace);
    done += std::max<uint64_t>(result.events, 1);
    simulated += result.seconds;
    counts += result.counts;
    ++seeds;
    ++seed;
  } while (done < events && !once);
  fmt::print(
      "{} events of {} seeds in {:.1f} s, {:.0f} simulated seconds: {} answers, {} refusals, {} cuts; {} clients left, "
      "{} hostile requests\n",
      done, seeds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), simulated,
      counts.answered, counts.refused, counts.cut, counts.left, counts.hostile);
  return failed == 0 ? 0 : 1;
}
