// The one error type of Sluice. Thrown for a wrong file, option or request; a wrong program is a CHECK (base/check.h).
// Caught in three places only: main, request admission (becomes an HTTP status), language bindings.
#pragma once

#include <stdexcept>
#include <string>

namespace sluice {

enum class ErrorCode {
  kInvalidRequest,    // the request cannot be served as asked: HTTP 400
  kNotFound,          // model, adapter or route unknown: 404
  kOverloaded,        // queue full, draining: 503 with Retry-After
  kUnsupportedModel,  // the checkpoint asks for something Sluice does not implement
  kCorruptFile,       // a file contradicts its format
  kOutOfMemory,       // the memory plan does not fit
  kInternal,          // a fault inside the engine, confined to one request: 500
};

struct Error : std::runtime_error {
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code(code) {}
  // `param` is the path of the request's field ("messages[2].content"), `reason` the machine-readable code of the API
  // ("context_length_exceeded"); both may be empty.
  Error(ErrorCode code, const std::string& message, std::string param, std::string reason)
      : std::runtime_error(message), code(code), param(std::move(param)), reason(std::move(reason)) {}

  ErrorCode code;
  std::string param;
  std::string reason;
};

}  // namespace sluice
