// sluice serve: the OpenAI-compatible server.
#include <fmt/core.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/log.h"
#include "cli/command.h"
#include "cli/load_engine.h"
#include "cli/model_list.h"
#include "cli/pull_model.h"
#include "cli/usage_error.h"
#include "engine/adapter_table.h"
#include "hub/cache.h"
#include "server/http/addresses.h"
#include "server/loading.h"
#include "server/models.h"
#include "server/pulls.h"
#include "server/server.h"
#include "server/startup.h"
#include "server/store/store.h"
#include "sluice/engine.h"

namespace sluice::cli::serve_command {
namespace {

using server::ModelHost;
using server::ModelHostOptions;
using server::Models;
using server::ModelSource;
using server::PullProgress;
using server::Pulls;
using server::PullSource;

// The exit status of a server whose engine failed after the start. A supervisor starts such a server anew. Status 1 is
// for failures that come back: of the options, the files or the load.
constexpr int kEngineFailed = EX_SOFTWARE;  // 70

struct Arguments {
  EngineOptions engine;  // of all models
  ServerOptions server;
  std::vector<std::string> models, entries;  // see read_models
};

// The server's address for clients on this machine.
std::string local_url(const ServerOptions& options, int port) {
  const std::string first = server::listen_addresses(options.host).front();
  const bool everywhere = first == "0.0.0.0" || first == "::";
  return fmt::format("{}://{}", options.ssl_certfile.empty() ? "http" : "https",
                     server::url_authority(everywhere ? "localhost" : first, port));
}

// Printed before the load: the page shows its progress.
void print_page_address(const ServerOptions& options, int port) {
  if (!options.web_page) return;
  fmt::print("Open {}/ in a browser.\n", local_url(options, port));
  std::fflush(stdout);
}

std::string cache_text(const ModelInfo& model) {
  if (model.task != Task::kGenerate) return "none: texts are computed whole";
  return fmt::format("{} tokens of {}", model.kv_cache_tokens, model.kv_cache_dtype);
}

std::string addresses(const ServerOptions& options, int port) {
  const std::string url = local_url(options, port);
  return fmt::format("{}/v1{}, {}/metrics", url, options.api_docs ? fmt::format(", {}/docs", url) : "", url);
}

// Six lines about what is served.
void print_summary(const ServerOptions& options, const std::string& name, const ModelInfo& model, int port) {
  fmt::print(
      "model:     {} ({}, {:.3g}B parameters)\n"
      "backend:   {}\n"
      "weights:   {}\n"
      "context:   {} tokens\n"
      "KV cache:  {}\n"
      "addresses: {}\n",
      name, model.family, static_cast<double>(model.parameters) / 1e9, model.backend, model.dtype, model.max_model_len,
      cache_text(model), addresses(options, port));
  if (model.has_chat_template) {
    fmt::print(
        "Or try this:\n"
        "  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}}]}}'\n",
        local_url(options, port), name);
  }
  std::fflush(stdout);
}

int serve_one(const ServerOptions& given, const ModelEntry& entry, std::unique_ptr<LoadingServer> loading) {
  ServerOptions options = given;
  options.served_model_name = entry.names;
  const auto engine = load_engine(entry.engine, [&](double share) { loading->progress(share); });
  Server server(*engine, options, loading->release());
  loading.reset();
  print_summary(options, entry.names.empty() ? engine->model().name : entry.names.front(), engine->model(),
                server.port());
  server.run();
  return engine->health().failed ? kEngineFailed : 0;
}

// Tells the clients that wait for the start how far the loads are. Loads after the start tell nobody.
class StartProgress {
 public:
  StartProgress(LoadingServer& server, size_t loads) : server_(&server), loads_(static_cast<double>(loads)) {}
  void share(double share) {
    if (server_ != nullptr) server_->progress(std::min(1.0, (done_ + share) / loads_));
  }
  void next() { ++done_; }
  void end() { server_ = nullptr; }

 private:
  LoadingServer* server_;
  double loads_, done_ = 0;
};

ModelSource source_of(const ModelEntry& entry, const std::shared_ptr<StartProgress>& started) {
  ModelSource source{.name = entry.names.front(),
                     .info = {},
                     .load = {},
                     .at_start = !entry.on_demand,
                     .idle = std::chrono::seconds(entry.idle_seconds)};
  try {
    source.info = Engine::describe(entry.engine);
  } catch (const Error& e) {
    throw Error(e.code, fmt::format("model '{}': {}", source.name, e.what()));
  }
  source.load = [options = entry.engine, started](double share, const std::function<void(double)>& progress) {
    EngineOptions mine = options;
    mine.kv_cache_share = share;
    auto engine = load_engine(mine, [&](double part) {
      started->share(part);
      progress(part);
    });
    started->next();
    return engine;
  };
  return source;
}

std::vector<ModelSource> sources_of(const std::vector<ModelEntry>& entries,
                                    const std::shared_ptr<StartProgress>& started) {
  std::vector<ModelSource> sources;
  for (const ModelEntry& entry : entries) sources.push_back(source_of(entry, started));
  return sources;
}

// Gives every model its names and those of its adapters.
std::shared_ptr<Models> table_of(std::shared_ptr<ModelHost> host, const std::vector<ModelEntry>& entries) {
  auto models = Models::of(std::move(host));
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& name : entries[i].names) models->add_hosted(name, i);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& module : entries[i].engine.lora_modules) {
      const std::string adapter = parse_lora_module(module).first;
      models->add_hosted(adapter, i, adapter);
    }
  }
  return models;
}

// Models that requests download have the options of all models.
std::shared_ptr<Pulls> pulls_of(const std::shared_ptr<Models>& models, const ServerOptions& options,
                                const EngineOptions& engine, const std::shared_ptr<StartProgress>& started) {
  if (!options.allow_pull) return nullptr;
  PullSource source{.name = hub_model_name, .get = {}};
  const auto budget = std::make_shared<PullBudget>(static_cast<uint64_t>(options.pull_cache_bytes));
  source.get = [engine, budget, started, idle = options.model_idle_seconds](const std::string& name,
                                                                            PullProgress& progress) {
    ModelEntry entry{.engine = engine, .names = {name}, .on_demand = true, .idle_seconds = idle};
    entry.engine.model = pull_model(name, engine.allow_bin, *budget, progress);
    entry.engine.lora_modules.clear();
    return source_of(entry, started);
  };
  return std::make_shared<Pulls>(models, std::move(source));
}

// `engine`: the options of all models.
int serve_several(const ServerOptions& options, const EngineOptions& engine, const std::vector<ModelEntry>& entries,
                  std::unique_ptr<LoadingServer> loading) {
  const auto started = std::make_shared<StartProgress>(*loading, entries.size());
  const auto host = std::make_shared<ModelHost>(
      sources_of(entries, started),
      ModelHostOptions{.max_loaded = static_cast<size_t>(options.max_loaded_models),
                       .grows = options.allow_pull,
                       .max_waiting = static_cast<size_t>(options.max_model_queue),
                       .max_wait = std::chrono::milliseconds(options.model_load_timeout_ms)});
  const std::shared_ptr<Models> models = table_of(host, entries);
  host->load_at_start();
  started->end();
  Server server(models, options, loading->release(), pulls_of(models, options, engine, started));
  loading.reset();
  for (size_t i = 0; i < host->size(); ++i) {
    const auto info = host->info(i);
    fmt::print("model:     {} ({}, {}, {:.3g}B parameters, {} tokens){}\n", host->name(i), info->family,
               to_string(info->task), static_cast<double>(info->parameters) / 1e9, info->max_model_len,
               host->look(i) != nullptr ? "" : ": loaded on demand");
  }
  fmt::print("addresses: {}\n", addresses(options, server.port()));
  std::fflush(stdout);
  server.run();
  return server.failed() ? kEngineFailed : 0;
}

// Models that nobody named are called as their folders.
void name_models(std::vector<ModelEntry>& entries) {
  for (ModelEntry& entry : entries) {
    if (entry.names.empty()) entry.names = {model_name(entry.engine.model)};
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const std::string& name : entries[i].names) {
        if (std::ranges::count(entries[j].names, name) == 0) continue;
        throw UsageError(fmt::format(
            "two models have the name '{}': write NAME=MODEL, or give served-model-name in the entries of 'models'",
            name));
      }
    }
  }
}

int serve(Arguments a) {
  server::open_standard_descriptors();
  server::ignore_file_size_signal();
  log::set_level(a.server.log_level);
  log::set_format(a.server.log_format == "json" ? log::Format::kJson : log::Format::kText);
  std::vector<ModelEntry> entries = read_models(a.models, a.entries, a.engine, a.server);
  a.server.max_connections = server::fit_connections(a.server.max_connections);
  auto loading = std::make_unique<LoadingServer>(a.server);
  print_page_address(a.server, loading->port());
  log::info("listening on {} port {}; requests are answered with 503 until the model is loaded", a.server.host,
            loading->port());
  server::check_store(a.server);
  const bool demo = entries.size() == 1 && entries.front().engine.model.empty();
  for (ModelEntry& entry : entries) make_local(entry.engine);
  if (demo) {
    fmt::print("This is the demo model. For another one: sluice serve MODEL, a folder, a GGUF file or org/name.\n");
  }
  const ModelEntry& first = entries.front();
  if (entries.size() == 1 && !first.on_demand && first.idle_seconds == 0 && !a.server.allow_pull) {
    return serve_one(a.server, first, std::move(loading));
  }
  name_models(entries);
  return serve_several(a.server, a.engine, entries, std::move(loading));
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  app.add_option("model", a->models,
                 "folder or file of a checkpoint, or org/name[:revision or GGUF type] on the Hugging Face hub; several "
                 "may be given, also as NAME=MODEL; without one, the bundled demo model")
      ->type_name("MODEL");
  app.add_option("--models", a->entries,
                 "a model with options of its own, as a JSON object; repeated for several (several-models.md)")
      ->type_name("JSON")
      ->allow_extra_args(false);
  add_engine_options(app, a->engine);
  add_server_options(app, a->server);
  return [a] { return serve(*a); };
}

const Command command{"serve", "serve a model over HTTP with an OpenAI-compatible API", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::serve_command
