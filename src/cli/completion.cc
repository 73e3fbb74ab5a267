// sluice completion, sluice man: what a package installs beside the program.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "cli/command_tree.h"

namespace sluice::cli::completion_command {
namespace {

std::function<int()> declare_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell: bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [&app, shell] {
    fmt::print("{}", completion_script(command_tree(*app.get_parent()), *shell));
    return 0;
  };
}

std::function<int()> declare_manual(CLI::App& app) {
  return [&app] {
    fmt::print("{}", manual_page(command_tree(*app.get_parent())));
    return 0;
  };
}

const Command completion{"completion", "print the completions of a shell", declare_completion};
const Registry<Command> registered_completion{completion};

const Command manual{"man", "print the manual page", declare_manual};
const Registry<Command> registered_manual{manual};

}  // namespace
}  // namespace sluice::cli::completion_command
