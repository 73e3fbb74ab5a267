// Forward declaration of the JSON value type, for headers that only pass it on: the library behind base/json.h is slow
// to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice {

using Json = nlohmann::ordered_json;

}  // namespace sluice
