// sluice bench machine: how much this machine's processors can read and compute per second. These are the limits for
// all other measurements.
#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "base/thread_pool.h"
#include "cli/bench/bench.h"
#include "kernels/cpu/dispatch/machine.h"

namespace sluice::cli {

Json to_json(const kernels::MachineLimits& limits) {
  const auto giga = [](double v) { return std::round(v * 1e-8) / 10; };
  return {{"read_gb_per_second", giga(limits.read_bandwidth)}, {"fp32_gflops", giga(limits.fma)},
          {"bf16_dot_gflops", giga(limits.bf16_dot)},          {"int8_dot_gops", giga(limits.int8_dot)},
          {"amx_bf16_gflops", giga(limits.amx_bf16)},          {"amx_int8_gops", giga(limits.amx_int8)}};
}

}  // namespace sluice::cli

namespace sluice::cli::bench_machine {
namespace {

int machine(int threads) {
  ThreadPool pool(threads);
  Json out = {{"threads", pool.threads()}};
  out.update(to_json(kernels::measure_machine(pool)));
  print_result(out);
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto threads = std::make_shared<int>(0);
  app.add_option("--threads", *threads, "compute threads (0: every CPU of the process)")->check(CLI::NonNegativeNumber);
  return [threads] { return machine(*threads); };
}

const BenchCommand command{"machine", "measure what the machine can read and compute per second", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_machine
