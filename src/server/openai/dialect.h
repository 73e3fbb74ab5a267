// OpenAI's dialect, with the additions of vLLM and others: errors are {"error": {message, type, param, code}}.
#pragma once

#include "base/json.h"
#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kOpenAi;

// {"error": {...}} with all four keys; `param` and `code` are null when the error has none.
Json to_json(const ApiError& error);

}  // namespace sluice::server
