// The program `simulation`: runs seeds until a number of events has happened.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

#include "simulation/child.h"
#include "simulation/machine/memory.h"
#include "simulation/simulation.h"

namespace {

using namespace sluice::simulation;

struct Options {
  uint64_t seed = 1, events = 1'000'000, per_seed = 30'000;
  int jobs = 1;
  double seconds = 0;  // 0: no limit
  bool once = false, keep_going = false, traces = false;
};

struct Total {
  uint64_t events = 0, seeds = 0, failed = 0;
  double simulated = 0;  // seconds
  Counts counts{};
};

// Runs every `jobs`-th seed from `first` for a job's part of the events.
Total run_seeds(const Options& options, uint64_t first) {
  const uint64_t events = options.events / static_cast<uint64_t>(options.jobs);
  const auto begin = std::chrono::steady_clock::now();
  Total total;
  for (uint64_t seed = first;; seed += static_cast<uint64_t>(options.jobs)) {
    if (options.once) fmt::print("seed {}: {}\n", seed, describe(make_plan(seed)));
    const Result result = run_seed(seed, options.per_seed);
    if (!result.passed) {
      fmt::print("seed {} fails: run it again with --once --seed {} --events-per-seed {}\n", seed, seed,
                 options.per_seed);
      ++total.failed;
    }
    if (options.once || options.traces) fmt::print("seed {} trace {:016x}\n", seed, result.trace);
    total.events += std::max<uint64_t>(result.events, 1);
    total.simulated += result.seconds;
    total.counts += result.counts;
    ++total.seeds;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const bool late = options.seconds > 0 && taken.count() >= options.seconds;
    if (total.events >= events || late || options.once || (total.failed > 0 && !options.keep_going)) return total;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the server over a simulated model, machine and network, from seeds. Prints the seed that fails.");
  // ./dev simulate has values of its own before those that it is given.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Options options;
  uint64_t allocation = 0;
  app.add_option("--seed", options.seed, "first seed");
  app.add_option("--events", options.events, "events of all seeds together");
  app.add_option("--events-per-seed", options.per_seed, "events of one seed");
  app.add_option("--seconds", options.seconds, "end after so many seconds; 0: no limit");
  app.add_option("--jobs", options.jobs, "processes that run seeds beside each other")->check(CLI::Range(1, 1024));
  app.add_flag("--once", options.once, "run only the first seed");
  app.add_flag("--traces", options.traces, "print the trace of each seed");
  app.add_flag("--keep-going", options.keep_going, "go on after a seed that fails");
  app.add_option("--stop-at-allocation", allocation, "raise SIGTRAP there, for a debugger that follows the child");
  CLI11_PARSE(app, argc, argv);
  if (options.once) options.jobs = 1;
  stop_at_allocation(allocation);

  const auto begin = std::chrono::steady_clock::now();
  write_model();
  std::vector<Child<Total>> jobs;
  for (int job = 0; job < options.jobs; ++job) {
    jobs.emplace_back(fmt::format("job {}", job),
                      [&] { return run_seeds(options, options.seed + static_cast<uint64_t>(job)); });
  }
  Total total;
  for (Child<Total>& job : jobs) {
    const Total part = job.wait().value_or(Total{.failed = 1});
    total.events += part.events;
    total.seeds += part.seeds;
    total.failed += part.failed;
    total.simulated += part.simulated;
    total.counts += part.counts;
  }
  fmt::print(
      "{} events of {} seeds in {:.1f} s, {:.0f} simulated seconds: {} answers, {} refusals, {} cuts; {} clients left, "
      "{} hostile requests; {} seeds failed\n",
      total.events, total.seeds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
      total.simulated, total.counts.answered, total.counts.refused, total.counts.cut, total.counts.left,
      total.counts.hostile, total.failed);
  return total.failed == 0 ? 0 : 1;
}
