// Anthropic's dialect: errors are {"type": "error", "error": {type, message}}.
#pragma once

#include "base/json.h"
#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kAnthropic;

// The whole error object, which is also the data of a stream's error event.
Json anthropic_error(const ApiError& error);

}  // namespace sluice::server
