// A model as Ollama's clients list it.
#pragma once

#include "base/json.h"
#include "server/models.h"

namespace sluice::server::ollama::models {

// "name", "size" in bytes, "digest" (64 hex digits), "details" and others.
Json card(const ServedModel& served);

}  // namespace sluice::server::ollama::models
