// The form of Anthropic's errors, and the types that its clients tell apart.
#include "server/anthropic/dialect.h"

namespace sluice::server {
namespace {

constexpr int kOverloadedStatus = 529;

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "invalid_request_error";
  }
}

std::string error_body(const ApiError& error) { return dump_json(anthropic_error(error)); }

int status(const ApiError& error) { return error.status == 503 ? kOverloadedStatus : error.status; }

}  // namespace

// Agents that shorten a conversation which has become too long look for this beginning of the message.
Json anthropic_error(const ApiError& error) {
  const bool too_long = error.code == "context_length_exceeded";
  return {{"type", "error"},
          {"error",
           {{"type", error_type(error.status)},
            {"message", too_long ? "prompt is too long: " + error.message : error.message}}}};
}

const Dialect kAnthropic{.name = "anthropic",
                         .error_body = error_body,
                         .status = status,
                         .request_id_header = "request-id",
                         .prefixes = {"/v1/messages"}};

namespace {
const Registry<Dialect> registered{kAnthropic};
}

}  // namespace sluice::server
