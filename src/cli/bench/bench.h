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

// Prints one line of JSON to standard output.
void print_result(const Json& result);

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
Percentiles percentiles(std::vector<double> values);  // zeros if `values` is empty
Json to_json(const Percentiles& p, double scale);     // multiplied by `scale` and rounded to 3 digits
Json to_json(const kernels::MachineLimits& limits);   // in units of 10^9 per second

// Describes requests that are run on an engine without HTTP.
struct LoadArguments {
  EngineOptions engine;
  std::string prompts;  // file with one prompt per line; empty: random prompts
  int input_len = 128, output_len = 128;
  int num_prompts = 64;
  int batch_size = 1, iterations = 5;
  int constrained = 0;        // of num_prompts: requests with the grammar, spread evenly among the others
  std::string schema, regex;  // the grammar: a JSON schema or a file with one, or a regular expression
  int adapters = -1;          // requests take turns with so many of --lora-modules, the first ones; -1: all
};
// adds MODEL, the engine's options and the requests' lengths
void add_load_options(CLI::App& app, LoadArguments& arguments);
// Loads the model with a queue that holds `requests` requests.
std::unique_ptr<Engine> load_engine(LoadArguments& arguments, int requests);
std::vector<Request> make_requests(const LoadArguments& arguments, const Engine& engine, int count);
Json describe(const LoadArguments& arguments, const Engine& engine);  // what was measured

struct LoadShape {
  int batch_size, input_len, output_len;
};
// Returns one `sluice bench latency` result per shape, all with one loaded model. Throws Error.
std::vector<Json> measure_latency(LoadArguments arguments, const std::vector<LoadShape>& shapes);

}  // namespace sluice::cli
