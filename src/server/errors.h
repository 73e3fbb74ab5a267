// Errors of the API as values. Wordings and codes are those of OpenAI; dialects print them in their own form.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/http/http.h"
#include "sluice/error.h"

namespace sluice {
struct Health;
}

namespace sluice::server {

// Thrown while a request is read, and passed as a value to the code that answers. `param` and `code` may be empty.
struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};                      // path of the field: "messages[2].content"
  std::string code = {};                       // machine-readable: "invalid_type"
  std::string type = "invalid_request_error";  // or "server_error", "service_unavailable_error"
  int retry_after_s = 0;                       // seconds of a Retry-After header; 0: none
};

struct Dialect;

// The error as a response: the dialect's body, the status and the headers that go with it. Without a dialect: the
// default one, for requests that match no route.
HttpResponse to_response(const ApiError& error, const Dialect& dialect);
HttpResponse to_response(const ApiError& error);

// Translates what the engine throws. Messages of kInternal are logged and not sent.
ApiError to_api_error(const Error& error);

// Errors in the wordings of the OpenAI API.
ApiError missing_parameter(std::string path);
// expected: "an integer". The message also names the JSON type of `got`.
ApiError invalid_type(std::string path, std::string_view expected, const Json& got);
ApiError invalid_value(std::string path, std::string message);
// Throws invalid_value unless the value is one of those that are accepted.
void expect_one_of(std::string_view value, std::string path, std::span<const std::string_view> accepted);
ApiError unsupported_parameter(std::string path, std::string_view reason);
// `served`: the names that would have been found, for the message.
ApiError model_not_found(std::string_view model, const std::vector<std::string>& served);
// No model was named, and there are several.
ApiError model_not_named(const std::vector<std::string>& served);
ApiError server_fault();
// The fault that ended a request with this message. Names the process that was lost, if that is the fault.
ApiError server_fault(const Health& health, std::string_view message);
// Queue full or draining: 503 with Retry-After.
ApiError overloaded(std::string message);
ApiError too_busy();  // the queue is full
// An allocation for the request failed: 503 as well.
ApiError out_of_memory();

// Text from a client, cut to 128 bytes and without control characters, fit for quoting in a message.
std::string quotable(std::string_view text);

}  // namespace sluice::server
