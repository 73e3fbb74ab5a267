// The last gate before the scheduler: nothing out of range gets past it, whoever built the request.
#pragma once

#include "sluice/request.h"

namespace sluice {

// Token ids must be in [0, vocab). Throws Error(kInvalidRequest) with the field's name and OpenAI's error code.
void validate(const Request& request, int vocab);

}  // namespace sluice
