// The dialect of Text Generation Inference: errors are {"error": message, "error_type": type}.
#pragma once

#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kTgi;

}  // namespace sluice::server
