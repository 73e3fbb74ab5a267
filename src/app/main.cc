// The entry point of the `sluice` program: declares the subcommands and runs one of them.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <string_view>

#include "cli/command.h"
#include "sluice/error.h"
#include "sluice/version.h"

namespace {

// Overwrites the values of --api-key in the command line, which other users of the machine can read. CLI11 has copied
// them.
void hide_api_keys(int argc, char** argv) {
  constexpr std::string_view kFlag = "--api-key";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    char* value = nullptr;
    if (word == kFlag && i + 1 < argc) {
      value = argv[++i];
    } else if (word.starts_with(kFlag) && word.substr(kFlag.size()).starts_with('=')) {
      value = argv[i] + kFlag.size() + 1;
    }
    if (value != nullptr) std::fill_n(value, std::strlen(value), 'x');
  }
}

// Writes out what is left of the output. Returns `status`, or 1 with a message if any of the output was lost.
int finish_output(int status) {
  std::cout.flush();
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || std::cout.fail();
  if (!lost) return status;
  fmt::print(stderr, "sluice: cannot write to standard output{}{}\n", errno != 0 ? ": " : "",
             errno != 0 ? std::strerror(errno) : "");
  return status != 0 ? status : 1;
}

int run(int argc, char** argv) {
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
    hide_api_keys(argc, argv);
    return chosen();
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const std::exception& e) {
    fmt::print(stderr, "sluice: {}\n", e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  errno = 0;
  return finish_output(status);
}
