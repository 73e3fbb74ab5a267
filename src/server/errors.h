// Errors of the HTTP API: a status with OpenAI's body {"error": {message, type, param, code}}.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "server/http/http.h"
#include "sluice/error.h"

namespace sluice::server {

// Thrown by request parsing, carried as a value by whoever answers. `param` and `code` are null in JSON when empty.
struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};                      // path of the field: "messages[2].content"
  std::string code = {};                       // machine-readable: "invalid_type"
  std::string type = "invalid_request_error";  // or "server_error", "service_unavailable_error"
  int retry_after_s = 0;                       // > 0: a Retry-After header goes with it
};

// {"error": {...}}, always with all four keys.
Json to_json(const ApiError& error);
// The same as a response, with the headers that go with the status.
HttpResponse to_response(const ApiError& error);

// Translates what the engine throws. Texts of kInternal stay in the log.
ApiError to_api_error(const Error& error);

// Constructors for the wordings of the OpenAI API.
ApiError missing_parameter(std::string path);
// expected: "an integer"; got: article and name of the value's JSON type.
ApiError invalid_type(std::string path, std::string_view expected, const Json& got);
ApiError invalid_value(std::string path, std::string message);
ApiError unsupported_parameter(std::string path, std::string_view reason);
ApiError model_not_found(std::string_view model);
ApiError server_fault();
// Queue full or draining: 503 with Retry-After.
ApiError overloaded(std::string message);
// An allocation for the request failed: 503 as well.
ApiError out_of_memory();

// Any text from a client, cut and with control characters replaced, fit for quoting inside a message.
std::string quotable(std::string_view text);

}  // namespace sluice::server
