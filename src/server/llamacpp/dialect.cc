// The form of llama.cpp's errors.
#include "server/llamacpp/dialect.h"

namespace sluice::server {
namespace {

std::string_view llamacpp_error_type(const ApiError& error) {
  if (error.code == "context_length_exceeded") return "exceed_context_size_error";
  switch (error.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

std::string llamacpp_error_body(const ApiError& error) { return dump_json(llama_error(error)); }

}  // namespace

Json llama_error(const ApiError& error) {
  return {{"error", {{"code", error.status}, {"message", error.message}, {"type", llamacpp_error_type(error)}}}};
}

const Dialect kLlamaCpp{.name = "llama.cpp",
                        .error_body = llamacpp_error_body,
                        .prefixes = {"/completion", "/infill", "/props", "/slots", "/apply-template"}};

namespace {
const Registry<Dialect> registered_llamacpp{kLlamaCpp};
}

}  // namespace sluice::server
