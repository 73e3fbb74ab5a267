// Messages of Ollama's chat API, translated to the form of OpenAI's.
#pragma once

#include "base/json.h"
#include "server/field_path.h"

namespace sluice::server {

// Calls get ids, and results of tools the ids of the calls that they answer. Throws ApiError that names the path.
Json translate_ollama_messages(const Json& messages, UnknownFields& unknown);

}  // namespace sluice::server
