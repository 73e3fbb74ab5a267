// Runs one request to its end on the calling thread and streams its text. Ctrl-C ends the answer, not the program.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/engine.h"
#include "sluice/sampling_parameters.h"

namespace CLI {
class App;
}

namespace sluice::cli {

struct Answer {
  std::string text;
  Finish finish;
  Usage usage;
  double seconds_to_first = 0, seconds = 0;
};

Answer generate(Engine& engine, Request request, const std::function<void(const std::string&)>& on_text);

// Sampling flags of `run` and `chat`. The model's own defaults apply to flags that are not given.
struct SamplingArguments {
  std::array<std::optional<double>, kSamplingParameters.size()> numbers;
  std::optional<int> max_tokens;
  std::optional<int64_t> seed;
  std::vector<std::string> stop;

  SamplingParams resolve(const ModelInfo& model) const;
};
void add_sampling_options(CLI::App& app, SamplingArguments& sampling);

}  // namespace sluice::cli
