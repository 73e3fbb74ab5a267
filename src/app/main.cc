// The entry point of the `sluice` program: declares the subcommands and runs one of them.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/command.h"
#include "sluice/error.h"
#include "sluice/version.h"

int main(int argc, char** argv) {
  using sluice::cli::Command;
  CLI::App app{"Sluice runs and serves large language models."};
  app.set_version_flag("--version", fmt::format("sluice {}", sluice::kVersion));
  app.require_subcommand(1);
  std::function<int()> chosen;
  for (const Command* command : sluice::Registry<Command>::all()) {
    CLI::App* sub = app.add_subcommand(std::string(command->name), command->summary);
    sub->callback([&chosen, run = command->declare(*sub)] { chosen = run; });
  }
  try {
    app.parse(argc, argv);
    return chosen();
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    fmt::print(stderr, "sluice: {}\n", e.what());
    return 1;
  }
}
