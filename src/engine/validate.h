// The last check of a request before the scheduler, for requests from any source.
#pragma once

#include "sluice/request.h"

namespace sluice {

// Checks ranges of sampling parameters and that token ids are in [0, vocab). Throws Error(kInvalidRequest) with the
// field's name and OpenAI's error code.
void validate(const Request& request, int vocab);

}  // namespace sluice
