// The field `lora` of llama.cpp's completions.
#pragma once

#include <string>

#include "server/endpoint.h"

namespace sluice::server {

// The adapter that the list chooses; empty: the model alone. Throws ApiError.
std::string llama_adapter(const Call& call, const Json& lora);

}  // namespace sluice::server
