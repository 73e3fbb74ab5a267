// Subcommands of the `sluice` program: one file each, registered by name.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/registry.h"
#include "sluice/options.h"

namespace CLI {
class App;
}

namespace sluice::cli {

struct Command {
  std::string_view name;
  const char* summary;
  // Adds the command's options to `app`; the returned function runs it after parsing and returns the exit status.
  std::function<int()> (*declare)(CLI::App& app);
};

// Options declared once in sluice/options.h, as flags and environment variables (--max-model-len,
// SLUICE_MAX_MODEL_LEN).
void add_engine_options(CLI::App& app, EngineOptions& options);
void add_server_options(CLI::App& app, ServerOptions& options);
// The positional MODEL; without one, the bundled demo model.
void add_model(CLI::App& app, EngineOptions& options);

// Folder of the demo model that is part of the program; written to the user's cache ($XDG_CACHE_HOME, ~/.cache) when it
// is not there yet. Throws Error when it cannot be.
std::string bundled_model();

// Makes options.model the path of a folder or file: the demo model when it is empty; a model of the hub is downloaded
// into the cache when it is not there, with a progress bar on a terminal. Throws Error.
void make_local(EngineOptions& options);
// The same for commands that need a model's configuration, tokenizer and template only.
std::string local_text(const std::string& model);

// All options as a Markdown table, for docs/options.md.
std::string options_markdown();

}  // namespace sluice::cli
