// Wordings and codes of API errors, in one place.
#include "server/errors.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"
#include "sluice/engine.h"

namespace sluice::server {
namespace {

std::string_view type_with_article(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::number_float:
      return "a decimal";
    default:
      return "an integer";
  }
}

// "Served: `a`, `b`."
std::string list_of(const std::vector<std::string>& served) {
  std::string names;
  for (const std::string& name : served) names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
  return served.empty() ? "No model is served." : fmt::format("Served: {}.", names);
}

}  // namespace

ApiError to_api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidRequest:
      return {.status = 400, .message = error.what(), .param = error.param, .code = error.reason};
    case ErrorCode::kNotFound:
      return {.status = 404, .message = error.what(), .param = error.param, .code = error.reason};
    case ErrorCode::kOverloaded:
      return overloaded(error.what());
    default:
      log::error("request failed: {}", error.what());
      return server_fault();
  }
}

ApiError missing_parameter(std::string path) {
  return {.message = fmt::format("Missing required parameter: '{}'.", path),
          .param = path,
          .code = "missing_required_parameter"};
}

ApiError invalid_type(std::string path, std::string_view expected, const Json& got) {
  return {.message = fmt::format("Invalid type for '{}': expected {}, but got {} instead.", path, expected,
                                 type_with_article(got)),
          .param = path,
          .code = "invalid_type"};
}

ApiError invalid_value(std::string path, std::string message) {
  return {.message = std::move(message), .param = std::move(path), .code = "invalid_value"};
}

void expect_one_of(std::string_view value, std::string path, std::span<const std::string_view> accepted) {
  if (std::ranges::find(accepted, value) != accepted.end()) return;
  throw invalid_value(std::move(path), fmt::format("Invalid value: '{}'. Supported values are: '{}'.", quotable(value),
                                                   fmt::join(accepted, "', '")));
}

ApiError unsupported_parameter(std::string path, std::string_view reason) {
  return {.message = fmt::format("Unsupported parameter: '{}' {}.", path, reason),
          .param = path,
          .code = "unsupported_parameter"};
}

ApiError model_not_found(std::string_view model, const std::vector<std::string>& served) {
  return {.status = 404,
          .message = fmt::format("The model `{}` does not exist or you do not have access to it. {}", quotable(model),
                                 list_of(served)),
          .code = "model_not_found"};
}

ApiError model_not_named(const std::vector<std::string>& served) {
  return {.message = fmt::format("Missing required parameter: 'model'. {}", list_of(served)),
          .param = "model",
          .code = "missing_required_parameter"};
}

ApiError server_fault() {
  return {.status = 500, .message = "The server had an error while processing your request.", .type = "server_error"};
}

ApiError server_fault(const Health& health, std::string_view message) {
  ApiError fault = server_fault();
  const bool of_failure = health.failed || (!message.empty() && health.failure.find(message) != std::string::npos);
  if (of_failure && !health.failure.empty()) fault.message = health.failure;
  return fault;
}

ApiError overloaded(std::string message) {
  return {.status = 503,
          .message = std::move(message),
          .code = "server_is_overloaded",
          .type = "service_unavailable_error",
          .retry_after_s = 1};
}

ApiError too_busy() { return overloaded("The server is overloaded. Please try again later."); }

ApiError out_of_memory() { return overloaded("The server has too little memory for this request at the moment."); }

std::string quotable(std::string_view text) {
  constexpr size_t kLimit = 128;
  std::string out;
  for (const char c : text.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (text.size() > kLimit) out += "...";
  return out;
}

}  // namespace sluice::server
