// The `bench` command and helpers that its measurements share.
#include "cli/bench/bench.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

namespace sluice::cli {

void print_result(const Json& result) { fmt::print("{}\n", dump_json(result)); }

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += v;
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1];
  };
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.99)};
}

Json to_json(const Percentiles& p, double scale) {
  const auto rounded = [scale](double v) { return std::round(v * scale * 1000) / 1000; };
  return {{"mean", rounded(p.mean)}, {"p50", rounded(p.p50)}, {"p90", rounded(p.p90)}, {"p99", rounded(p.p99)}};
}

}  // namespace sluice::cli

namespace sluice::cli::bench_bench {
namespace {

std::function<int()> declare(CLI::App& app) {
  auto chosen = std::make_shared<std::function<int()>>();
  app.require_subcommand(1);
  for (const BenchCommand* bench : Registry<BenchCommand>::all()) {
    CLI::App* sub = app.add_subcommand(std::string(bench->name), bench->summary);
    sub->callback([chosen, run = bench->declare(*sub)] { *chosen = run; });
  }
  return [chosen] { return (*chosen)(); };
}

const Command command{"bench", "measure latency, throughput, perplexity and more", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_bench
