// sluice ps: the models of a server that runs, by its HTTP API.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "hub/http_client.h"
#include "sluice/error.h"

namespace sluice::cli::ps_command {
namespace {

// The body of an answer with status 200.
Json get(const std::string& url, const std::string& key) {
  std::string body;
  const hub::HttpResponse response = hub::perform(
      {.url = hub::Url::parse(url), .token = key, .leave_origin = false}, [](const hub::HttpResponse&) {},
      [&](std::string_view piece) { body += piece; });
  if (response.status != 200) {
    throw Error(ErrorCode::kInternal, fmt::format("{} answered with status {}: {}", url, response.status, body));
  }
  return parse_json(body);
}

int list(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  const char* key = std::getenv("SLUICE_API_KEY");
  const Json models = get(url + "/v1/models", key != nullptr ? key : "");
  if (!models.contains("data") || !models["data"].is_array()) {
    throw Error(ErrorCode::kInternal, fmt::format("{} does not list its models", url));
  }
  size_t width = 5;
  for (const Json& model : models["data"]) width = std::max(width, model.value("id", "").size());
  fmt::print("{:<{}}  {:<8}  {:>8}  {}\n", "MODEL", width, "TASK", "CONTEXT", "LOADED");
  for (const Json& model : models["data"]) {
    fmt::print("{:<{}}  {:<8}  {:>8}  {}\n", model.value("id", ""), width, model.value("task", ""),
               model.value("max_model_len", 0), model.value("loaded", true) ? "yes" : "no");
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto url = std::make_shared<std::string>("http://127.0.0.1:8000");
  app.add_option("--url", *url, "address of the server; SLUICE_API_KEY holds its key")->capture_default_str();
  return [url] { return list(*url); };
}

const Command command{"ps", "list the models of a running server", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::ps_command
