// The models that `sluice serve` is to serve: those of the command line and the entries of --models.
#pragma once

#include <string>
#include <vector>

#include "sluice/options.h"

namespace sluice::cli {

struct ModelEntry {
  EngineOptions engine;
  std::vector<std::string> names;  // empty: the model's own name
  bool on_demand = false;
  int idle_seconds = 0;
};

// `models`: MODEL or NAME=MODEL. `entries`: JSON objects of a model and options of its own, or MODEL. What an entry
// leaves out is as in `engine` and `server`. Without any, one entry stands for the bundled demo model. Throws
// UsageError.
std::vector<ModelEntry> read_models(const std::vector<std::string>& models, const std::vector<std::string>& entries,
                                    const EngineOptions& engine, const ServerOptions& server);

}  // namespace sluice::cli
