// Subcommands of the `sluice` program. Each is one file and registers itself by name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/registry.h"
#include "sluice/options.h"

namespace CLI {
class App;
}

namespace sluice::route {
struct RouteOptions;
}

namespace sluice::cli {

struct Command {
  std::string_view name;
  const char* summary;
  // Adds the command's options to `app`. The returned function runs the command after parsing and returns the exit
  // status.
  std::function<int()> (*declare)(CLI::App& app);
};

// Add the options of sluice/options.h and route/options.h as flags and environment variables (--max-model-len,
// SLUICE_MAX_MODEL_LEN).
void add_engine_options(CLI::App& app, EngineOptions& options);
void add_server_options(CLI::App& app, ServerOptions& options);
void add_route_options(CLI::App& app, route::RouteOptions& options);
// The engine options of a parsed command that say how its ranks are started; others keep their defaults. nullopt: the
// command has none of them.
std::optional<EngineOptions> rank_options(const CLI::App& command);
// Adds the positional MODEL; without one, the bundled demo model is used.
void add_model(CLI::App& app, EngineOptions& options);

// Returns the folder of the demo model that is part of the program. Writes it to the user's cache ($XDG_CACHE_HOME,
// ~/.cache) if it is not there yet. If it cannot, it warns and uses the folder for temporary files. Throws Error if
// that fails, too.
std::string bundled_model();

// Makes options.model the path of a folder or file. Empty becomes the demo model. A model on the hub is downloaded into
// the cache if it is not there, with a progress bar on a terminal. A tokenizer and a draft model on the hub are
// downloaded, too. Throws Error.
void make_local(EngineOptions& options);
// Like make_local, for commands that need only a model's configuration, tokenizer and template.
std::string local_text(const std::string& model);

// All options as a Markdown table for docs/options.md.
std::string options_markdown();

}  // namespace sluice::cli
