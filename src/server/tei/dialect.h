// The dialect of Text Embeddings Inference: errors are {"error": message, "error_type": type}.
#pragma once

#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kTei;

}  // namespace sluice::server
