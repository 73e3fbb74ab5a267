// An API family: the endpoints of one vendor and the form of its errors.
#pragma once

#include <string>
#include <string_view>

#include "base/registry.h"
#include "server/errors.h"

namespace sluice::server {

// One constant object per dialect, registered by the dialect's own folder. Endpoints name theirs (endpoint.h).
struct Dialect {
  std::string_view name = {};
  std::string (*error_body)(const ApiError& error) = nullptr;  // JSON text
};

// Prints errors of requests that match no route. Ends the program when no dialect is linked.
const Dialect& default_dialect();

}  // namespace sluice::server
