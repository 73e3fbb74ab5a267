// Puts options into words and lets the command line read them.
#include "binding/engine_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/usage_error.h"
#include "hub/download.h"
#include "sluice/error.h"

namespace sluice::binding {
namespace {

constexpr const char* kCommand = "engine";

// The words of a command line with these options.
std::vector<std::string> words_of(const std::string& model, std::span<const NamedOption> options) {
  std::vector<std::string> words{kCommand};
  for (const NamedOption& option : options) words.push_back("--" + option.name + "=" + option.value);
  if (!model.empty()) words.insert(words.end(), {"--", model});
  return words;
}

EngineOptions parse(const std::string& model, std::span<const NamedOption> options, std::vector<std::string>& notes) {
  EngineOptions parsed;
  CLI::App app;
  CLI::App* command = app.add_subcommand(kCommand);
  cli::add_model(*command, parsed);
  cli::add_engine_options(*command, parsed);
  cli::CommandLine line = cli::read_arguments(app, words_of(model, options));
  for (const auto& [name, value] : line.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::reverse(line.words.begin(), line.words.end());  // as CLI11 wants them
  app.parse(std::move(line.words));
  notes = std::move(line.notes);
  return parsed;
}

// Parses, and names `param` in what it throws.
EngineOptions parse_named(const std::string& param, const std::string& model, std::span<const NamedOption> options,
                          std::vector<std::string>& notes) {
  const auto refuse = [&](const std::string& message) -> EngineOptions {
    const bool unknown = message.starts_with("unknown option");
    throw Error(ErrorCode::kInvalidRequest, message, param, unknown ? "unknown_option" : "invalid_option");
  };
  try {
    return parse(model, options, notes);
  } catch (const CLI::ParseError& e) {
    return refuse(e.what());
  } catch (const cli::UsageError& e) {
    return refuse(e.what());
  }
}

}  // namespace

EngineOptions read_engine_options(const std::string& model, std::span<const NamedOption> options,
                                  std::vector<std::string>& notes) {
  // Each option alone, so that a wrong one can be named. The message names a wrong variable of the environment.
  parse_named("", model, {}, notes);
  for (const NamedOption& option : options) parse_named(option.name, model, {&option, 1}, notes);
  EngineOptions parsed = parse_named("", model, options, notes);
  if (parsed.model.empty()) {
    throw Error(ErrorCode::kInvalidRequest,
                "the model is missing: expected a folder, a file, or org/name on the Hugging Face hub", "model",
                "invalid_option");
  }
  parsed.model = fetch_model(parsed.model, {.allow_bin = parsed.allow_bin});
  if (!parsed.tokenizer.empty()) parsed.tokenizer = fetch_model(parsed.tokenizer, {.text_only = true});
  return parsed;
}

}  // namespace sluice::binding
