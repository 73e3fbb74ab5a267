// sluice bench NAME: measurements, each with a JSON result.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "sluice/engine.h"

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

// A load of requests on an engine without HTTP.
struct LoadArguments {
  EngineOptions engine;
  std::string prompts;  // file; empty: random
  int input_len = 128, output_len = 128;
  int num_prompts = 64;
  int batch_size = 1, iterations = 5;
};
void add_load_options(CLI::App& app, LoadArguments& arguments);  // MODEL, the engine's options, lengths of requests
// Loads the model, with a queue that takes as many requests.
std::unique_ptr<Engine> load_engine(LoadArguments& arguments, int requests);
std::vector<Request> make_requests(const LoadArguments& arguments, const Engine& engine, int count);
Json describe(const LoadArguments& arguments, const Engine& engine);  // what was measured

struct LoadShape {
  int batch_size, input_len, output_len;
};
// One result of `sluice bench latency` for each shape, all of one loaded model. Throws Error.
std::vector<Json> measure_latency(LoadArguments arguments, const std::vector<LoadShape>& shapes);

}  // namespace sluice::cli
