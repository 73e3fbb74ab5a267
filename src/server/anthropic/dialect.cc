// The form of Anthropic's errors, and the types that its clients tell apart.
#include "server/anthropic/dialect.h"

#include <fmt/core.h>

#include <cstdio>

namespace sluice::server {
namespace {

constexpr int kOverloadedStatus = 529;

std::string_view anthropic_error_type(int status) {
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

// Agents read these two messages: the one makes them ask for fewer tokens, the other shorten the conversation. The
// numbers are taken from the engine's wording (sluice/context.h).
std::string context_message(const std::string& message) {
  int context = 0, total = 0, prompt = 0, completion = 0;
  constexpr const char* kBoth =
      "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in";
  constexpr const char* kPrompt =
      "This model's maximum context length is %d tokens. However, your messages resulted in %d tokens";
  if (std::sscanf(message.c_str(), kBoth, &context, &total, &prompt, &completion) == 4) {
    return fmt::format(
        "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or "
        "`max_tokens` and try again",
        prompt, completion, context);
  }
  if (std::sscanf(message.c_str(), kPrompt, &context, &prompt) == 2) {
    return fmt::format("prompt is too long: {} tokens > {} maximum", prompt, context);
  }
  return "prompt is too long: " + message;
}

std::string anthropic_error_body(const ApiError& error) { return dump_json(anthropic_error(error)); }

int status(const ApiError& error) { return error.status == 503 ? kOverloadedStatus : error.status; }

}  // namespace

Json anthropic_error(const ApiError& error) {
  const bool too_long = error.code == "context_length_exceeded";
  return {{"type", "error"},
          {"error",
           {{"type", anthropic_error_type(error.status)},
            {"message", too_long ? context_message(error.message) : error.message}}}};
}

const Dialect kAnthropic{.name = "anthropic",
                         .error_body = anthropic_error_body,
                         .status = status,
                         .request_id_header = "request-id",
                         .prefixes = {"/v1/messages"}};

namespace {
const Registry<Dialect> registered_anthropic{kAnthropic};
}

}  // namespace sluice::server
