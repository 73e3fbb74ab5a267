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

// Options declared once in sluice/options.h, as flags and environment variables (--max-model-len, SLUICE_MAX_MODEL_LEN).
void add_engine_options(CLI::App& app, EngineOptions& options);
void add_server_options(CLI::App& app, ServerOptions& options);
// The positional MODEL; without one, the bundled demo model.
void add_model(CLI::App& app, EngineOptions& options);

// The demo model that ships with Sluice. Throws Error(kNotFound) naming the places looked at.
std::string bundled_model();

// All options as a Markdown table, for docs/options.md.
std::string options_markdown();

}  // namespace sluice::cli
