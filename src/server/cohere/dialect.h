// The dialect of Cohere's API: errors have a message beside OpenAI's error object.
#pragma once

#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kCohere;

}  // namespace sluice::server
