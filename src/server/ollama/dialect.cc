// The form of Ollama's errors and times.
#include "server/ollama/dialect.h"

#include <fmt/core.h>

#include <chrono>
#include <ctime>

namespace sluice::server {
namespace {

std::string ollama_error_body(const ApiError& error) { return dump_json({{"error", error.message}}); }

}  // namespace

const Dialect kOllama{.name = "ollama",
                      .error_body = ollama_error_body,
                      .model_suffix = ":latest",
                      .model_prefixes = {"hf.co/", "huggingface.co/"},
                      .prefixes = {"/api/"},
                      .any_content_type = true};

std::string rfc3339(int64_t microseconds_since_1970) {
  const auto seconds = static_cast<std::time_t>(microseconds_since_1970 / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, microseconds_since_1970 % 1'000'000);
}

std::string rfc3339_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return rfc3339(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

namespace {
const Registry<Dialect> registered_ollama{kOllama};
}

}  // namespace sluice::server
