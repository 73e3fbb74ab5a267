// llama.cpp's own routes: errors are {"error": {code, message, type}}.
#pragma once

#include "base/json.h"
#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kLlamaCpp;

Json llama_error(const ApiError& error);

}  // namespace sluice::server
