// Puts options into words and lets the command line read them.
#include "binding/engine_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/foreign_options.h"
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

OptionName::Takes taken_by(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return OptionName::Takes::kFlag;
  return option.get_items_expected_max() > 1 ? OptionName::Takes::kList : OptionName::Takes::kValue;
}

OptionName::Takes taken_by(const cli::ForeignOption& row) {
  using Foreign = cli::ForeignOption::Takes;
  if (row.takes == Foreign::kFlag) return OptionName::Takes::kFlag;
  if (row.takes == Foreign::kOptional) return OptionName::Takes::kOptional;
  return row.takes == Foreign::kList ? OptionName::Takes::kList : OptionName::Takes::kValue;
}

// Whether the engine has what an option of vLLM becomes. Options of its server are not the engine's.
bool has_target(const CLI::App& command, const cli::ForeignOption& row) {
  if (row.kind != cli::ForeignOption::Kind::kWorks || row.to == "hf-token" || row.to == "download-dir" ||
      row.name == "revision") {
    return true;
  }
  const std::string to = "--" + std::string(row.to.substr(0, row.to.find('=')));
  return command.get_option_no_throw(to) != nullptr;
}

std::vector<std::string> words_of(const cli::ForeignOption& row) {
  std::vector<std::string> words{"--" + std::string(row.name)};
  std::istringstream aliases{std::string(row.aliases)};
  for (std::string alias; aliases >> alias;) words.push_back(alias);
  return words;
}

}  // namespace

std::vector<OptionName> list_engine_options() {
  EngineOptions options;
  CLI::App app;
  cli::add_engine_options(app, options);
  std::vector<OptionName> out;
  for (const CLI::Option* option : std::as_const(app).get_options()) {
    const std::string& name = option->get_lnames()[0];
    if (name == "help") continue;
    const auto vllm = std::ranges::find(cli::vllm_options(), name, &cli::ForeignOption::name);
    std::vector<std::string> words = vllm != cli::vllm_options().end() ? words_of(*vllm) : std::vector<std::string>();
    if (words.empty() || words[0] != "--" + name) words.insert(words.begin(), "--" + name);
    out.push_back({.words = std::move(words), .takes = taken_by(*option), .help = option->get_description()});
  }
  for (const cli::ForeignOption& row : cli::vllm_options()) {
    const bool ours = app.get_option_no_throw("--" + std::string(row.name)) != nullptr;
    if (ours || row.name == "model" || !has_target(app, row)) continue;
    out.push_back({.words = words_of(row), .takes = taken_by(row), .help = std::string(row.text)});
  }
  return out;
}

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
