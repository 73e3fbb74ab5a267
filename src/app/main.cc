// The entry point of the `sluice` program: declares the subcommands and runs one of them.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.h"
#include "cli/build_facts.h"
#include "cli/command.h"
#include "cli/usage_error.h"
#include "engine/ranks.h"
#include "sluice/error.h"

namespace {

constexpr int kUsage = 2;  // exit status after options that cannot be used

// Overwrites secrets in the command line, which other users of the machine can read. They have been copied.
void hide_secrets(int argc, char** argv, const std::vector<std::string>& secrets) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    for (const std::string& secret : secrets) {
      if (!secret.empty() && (word == secret || word.ends_with("=" + secret))) {
        std::fill_n(argv[i] + word.size() - secret.size(), secret.size(), 'x');
      }
    }
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

// `sluice rank DESCRIPTOR RANK` is for this program itself: see engine/ranks.h. Returns nullopt for other commands.
std::optional<int> run_as_rank(int argc, char** argv) {
  constexpr const char* kCommand = "rank";
  sluice::set_rank_command(kCommand);
  if (argc != 4 || std::string_view(argv[1]) != kCommand) return std::nullopt;
  return sluice::run_rank(std::atoi(argv[2]), std::atoi(argv[3]));
}

// Runs the chosen command, on rank 0 only if a launcher started several processes for it.
int run_command(const CLI::App& app, const std::function<int()>& command) {
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  const auto options = sluice::cli::rank_options(*chosen);
  const bool launched = options && options->distributed_executor_backend == "mpi";
  return launched ? sluice::run_launched(*options, command) : command();
}

int run(int argc, char** argv) {
  using sluice::cli::Command;
  CLI::App app{"Sluice runs and serves large language models."};
  app.set_version_flag("--version", sluice::cli::build_facts);
  app.require_subcommand(1);
  std::function<int()> chosen;
  for (const Command* command : sluice::Registry<Command>::all()) {
    CLI::App* sub = app.add_subcommand(std::string(command->name), command->summary);
    sub->callback([&chosen, run = command->declare(*sub)] { chosen = run; });
  }
  try {
    if (const std::optional<int> status = run_as_rank(argc, argv)) return *status;
    sluice::cli::CommandLine line = sluice::cli::read_arguments(app, {argv + 1, argv + argc});
    hide_secrets(argc, argv, line.secrets);
    for (const std::string& note : line.notes) fmt::print(stderr, "sluice: {}\n", note);
    for (const auto& [name, value] : line.environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::reverse(line.words.begin(), line.words.end());  // as CLI11 wants them
    app.parse(std::move(line.words));
    return run_command(app, chosen);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help and --version
    fmt::print(stderr, "sluice: {}\n", e.what());
    return kUsage;
  } catch (const sluice::cli::UsageError& e) {
    fmt::print(stderr, "sluice: {}\n", e.what());
    return kUsage;
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "sluice: {}\n", e.what());
    return e.code == sluice::ErrorCode::kInvalidRequest ? kUsage : 1;
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
