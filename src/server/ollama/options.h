// Fields that /api/chat and /api/generate share: options, format, think, keep_alive, stream.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "server/engine_request.h"
#include "server/parameters.h"

namespace sluice::server {

struct OllamaFields {
  bool stream = true;
  Json options;                // object or null
  std::optional<int> num_ctx;  // of the options
  bool unloads = false;        // keep_alive is 0
};

std::span<const Parameter> ollama_keep_alive_parameter();
std::span<const Parameter> ollama_generation_parameters();

// Reads `options` into SamplingParams and GenerationFields. Throws ApiError.
void read_ollama_options(Call& call);

// A request without a prompt asks to load the model, or with keep_alive 0 to unload it. Models stay loaded, so the
// first is answered at once, and the second refused.
void answer_load(Call& call, const char* key, Json empty);

}  // namespace sluice::server
