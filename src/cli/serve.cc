// sluice serve: the OpenAI-compatible server.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "cli/command.h"
#include "cli/load_engine.h"
#include "server/loading.h"
#include "server/server.h"
#include "server/startup.h"
#include "sluice/engine.h"

namespace sluice::cli::serve_command {
namespace {

struct Arguments {
  EngineOptions engine;
  ServerOptions server;
};

// The server's address for clients on this machine.
std::string local_url(const ServerOptions& options, int port) {
  const bool everywhere = options.host == "0.0.0.0" || options.host == "::";
  const bool ipv6 = options.host.find(':') != std::string::npos;
  const std::string host = everywhere ? "localhost" : ipv6 ? fmt::format("[{}]", options.host) : options.host;
  return fmt::format("{}://{}:{}", options.ssl_certfile.empty() ? "http" : "https", host, port);
}

// Printed before the load: the page shows its progress.
void print_page_address(const ServerOptions& options, int port) {
  fmt::print("Open {}/ in a browser.\n", local_url(options, port));
  std::fflush(stdout);
}

std::string cache_text(const ModelInfo& model) {
  if (model.task != Task::kGenerate) return "none: texts are computed whole";
  return fmt::format("{} tokens of {}", model.kv_cache_tokens, model.kv_cache_dtype);
}

// Six lines about what is served.
void print_summary(const Arguments& a, const Engine& engine, int port) {
  const ModelInfo& model = engine.model();
  const std::string url = local_url(a.server, port);
  const std::string& name = a.server.served_model_name.empty() ? model.name : a.server.served_model_name.front();
  fmt::print(
      "model:     {} ({}, {:.3g}B parameters)\n"
      "backend:   {}\n"
      "weights:   {}\n"
      "context:   {} tokens\n"
      "KV cache:  {}\n"
      "addresses: {}/v1{}, {}/metrics\n",
      name, model.family, static_cast<double>(model.parameters) / 1e9, model.backend, model.dtype, model.max_model_len,
      cache_text(model), url, a.server.api_docs ? fmt::format(", {}/docs", url) : "", url);
  if (model.has_chat_template) {
    fmt::print(
        "Or try this:\n"
        "  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"What is 17 + 25?\"}}]}}'\n",
        url, name);
  }
  std::fflush(stdout);
}

int serve(Arguments a) {
  server::open_standard_descriptors();
  log::set_level(a.server.log_level);
  log::set_format(a.server.log_format == "json" ? log::Format::kJson : log::Format::kText);
  a.server.max_connections = server::fit_connections(a.server.max_connections);
  auto loading = std::make_unique<LoadingServer>(a.server);
  print_page_address(a.server, loading->port());
  log::info("listening on {} port {}; requests are answered with 503 until the model is loaded", a.server.host,
            loading->port());
  make_local(a.engine);
  const auto engine = load_engine(a.engine, [&](double share) { loading->progress(share); });
  Server server(*engine, a.server, loading->release());
  loading.reset();
  print_summary(a, *engine, server.port());
  server.run();
  return engine->health().failed ? 1 : 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  add_engine_options(app, a->engine);
  add_server_options(app, a->server);
  return [a] { return serve(*a); };
}

const Command command{"serve", "serve a model over HTTP with an OpenAI-compatible API", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::serve_command
