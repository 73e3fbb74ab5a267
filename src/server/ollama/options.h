// Fields that /api/chat and /api/generate share: options, format, think, keep_alive, stream.
#pragma once

#include <chrono>
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
  bool has_keep_alive = false;
  std::optional<std::chrono::milliseconds> keep_alive;  // none: for ever
  bool unloads() const { return keep_alive && keep_alive->count() == 0; }
};

std::span<const Parameter> ollama_keep_alive_parameter();
std::span<const Parameter> ollama_generation_parameters();

// Reads `options` and what log probabilities are asked for into SamplingParams and GenerationFields. Throws ApiError.
void read_ollama_options(Call& call);

// Applies the field keep_alive to a model that comes and goes. Others stay loaded.
void apply_keep_alive(Call& call);

// Whether a request must have its model loaded: all but those without the field `prompt` that only unload it.
bool needs_engine_unless_unloading(const Json& body, std::string_view prompt);

// A request without a prompt asks to load the model, or with keep_alive 0 to unload it. Models that always stay loaded
// refuse the latter.
void answer_load(Call& call, const char* key, Json empty);

}  // namespace sluice::server
