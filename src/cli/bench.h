// sluice bench NAME: measurements, each with a JSON result.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/command.h"

namespace sluice::kernels {
struct MachineLimits;
}

namespace sluice::cli {

struct BenchCommand {
  std::string_view name;
  const char* summary;
  std::function<int()> (*declare)(CLI::App& app);
};

// One line of JSON on standard output.
void print_result(const Json& result);

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(std::vector<double> values);  // empty: zeros
Json to_json(const Percentiles& p, double scale);     // rounded to 3 digits after scaling
Json to_json(const kernels::MachineLimits& limits);   // in units of 10^9 per second

}  // namespace sluice::cli
