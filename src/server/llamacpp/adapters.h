// Adapters as llama.cpp's clients choose them.
#pragma once

#include "server/endpoint.h"

namespace sluice::server {

// The adapter that an array of numbers and scales chooses; without a name: the model alone. Throws ApiError that names
// an element of the field `lora`.
ScaledAdapter llama_adapter(const Call& call, const Json& lora);

}  // namespace sluice::server
