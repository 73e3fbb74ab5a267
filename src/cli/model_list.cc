// Parses each entry like a command line of its own; see model_list.h.
#include "cli/model_list.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "base/json.h"
#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/usage_error.h"
#include "server/models.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

// NAME=MODEL, unless there is a file of that name.
void read_argument(const std::string& text, ModelEntry& out) {
  const size_t equals = text.find('=');
  std::error_code ignored;
  if (equals == std::string::npos || text.find('/') < equals || std::filesystem::exists(text, ignored)) {
    out.engine.model = text;
    return;
  }
  if (equals == 0 || equals + 1 == text.size()) {
    throw UsageError(fmt::format("'{}': expected MODEL or NAME=MODEL", text));
  }
  out.names = {text.substr(0, equals)};
  out.engine.model = text.substr(equals + 1);
}

// The words of a command line that say the same as the entry.
std::vector<std::string> words_of(const Json& entry) {
  std::vector<std::string> words;
  const auto add = [&](const std::string& key, const Json& value) {
    words.push_back(fmt::format("--{}={}", key, value.is_string() ? value.get<std::string>() : dump_json(value)));
  };
  for (const auto& [key, value] : entry.items()) {
    if (value.is_null()) throw UsageError(fmt::format("{}: has no value", key));
    if (!value.is_array()) {
      add(key, value);
      continue;
    }
    for (const Json& item : value) add(key, item);
  }
  return words;
}

void read_entry(const Json& entry, ModelEntry& out) {
  CLI::App app("", "serve --models");
  std::string load = out.on_demand ? "on-demand" : "start";
  add_model(app, out.engine);
  add_engine_options(app, out.engine);
  for (const char* name : {"--config", "--numa"}) app.remove_option(app.get_option(name));
  app.add_option("--served-model-name", out.names)->allow_extra_args(false)->delimiter(',');
  app.add_option("--load", load)->check(CLI::IsMember({"start", "on-demand"}));
  app.add_option("--model-idle-seconds", out.idle_seconds)->check(CLI::Range(0, 2147483647));
  // The options of all models have read the variables.
  for (CLI::Option* option : app.get_options()) option->envname("");
  CommandLine line = read_words(app, words_of(entry));
  if (!line.environment.empty()) {
    throw UsageError(fmt::format("{} holds for all models: set it outside of 'models'", line.environment[0].first));
  }
  for (const std::string& note : line.notes) fmt::print(stderr, "sluice: {}\n", note);
  std::ranges::reverse(line.words);
  try {
    app.parse(std::move(line.words));
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  out.on_demand = load == "on-demand";
  if (out.engine.model.empty()) throw UsageError("needs a 'model'");
}

}  // namespace

std::vector<ModelEntry> read_models(const std::vector<std::string>& models, const std::vector<std::string>& entries,
                                    const EngineOptions& engine, const ServerOptions& server) {
  if (!models.empty() && !entries.empty()) {
    throw UsageError(fmt::format("the model '{}' is given besides the list 'models': put it into the list", models[0]));
  }
  const ModelEntry usual{.engine = engine,
                         .names = {},
                         .on_demand = server.load_models_on_demand,
                         .idle_seconds = server.model_idle_seconds};
  std::vector<ModelEntry> out;
  for (const std::string& text : models) read_argument(text, out.emplace_back(usual));
  for (const std::string& text : entries) {
    ModelEntry& entry = out.emplace_back(usual);
    try {
      if (text.starts_with('{')) {
        read_entry(parse_json(text), entry);
      } else {
        read_argument(text, entry);
      }
    } catch (const Error& e) {
      throw UsageError(fmt::format("models[{}]: {}", out.size() - 1, e.what()));
    } catch (const UsageError& e) {
      throw UsageError(fmt::format("models[{}]: {}", out.size() - 1, e.what()));
    }
  }
  if (out.empty()) out.push_back(usual);
  if (!server.served_model_name.empty()) {
    if (out.size() > 1) {
      throw UsageError(
          "--served-model-name: there are several models; write NAME=MODEL, or give served-model-name in the entries "
          "of 'models'");
    }
    if (out[0].names.empty()) out[0].names = server.served_model_name;
  }
  std::set<std::string> records;
  for (const ModelEntry& entry : out) {
    const std::string& record = entry.engine.expert_distribution_record;
    if (!record.empty() && !records.insert(record).second) {
      throw UsageError(
          fmt::format("--expert-distribution-record: several models would write {}; give each its own file in the "
                      "entries of 'models'",
                      record));
    }
    if (!entry.names.empty() && entry.names.front() == server::kAnyName) {
      throw UsageError("--served-model-name: '*' stands for any name, and comes after the model's own");
    }
  }
  return out;
}

}  // namespace sluice::cli
