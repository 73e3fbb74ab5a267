// The options of the HTTP transport, from those of the server.
#pragma once

#include "server/http/server.h"
#include "sluice/options.h"

namespace sluice::server {

// Throws Error(kInvalidRequest) that names the option if one is out of range or contradicts another.
HttpServerOptions transport_options(const ServerOptions& options);

}  // namespace sluice::server
