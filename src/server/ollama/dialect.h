// Ollama's dialect: errors are {"error": message}; a model's name may end in ":latest".
#pragma once

#include <string>

#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kOllama;

// A moment as Ollama prints it: "2026-01-31T12:00:00.123456Z".
std::string rfc3339(int64_t microseconds_since_1970);
std::string rfc3339_now();

}  // namespace sluice::server
