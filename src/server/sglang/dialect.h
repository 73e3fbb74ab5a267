// SGLang's own routes: errors are {"error": {"message": text}}.
#pragma once

#include "server/dialect.h"

namespace sluice::server {

extern const Dialect kSglang;

}  // namespace sluice::server
