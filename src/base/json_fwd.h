// The name of JSON values for headers that only pass them on: the library behind base/json.h is slow to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice {

using Json = nlohmann::ordered_json;

}  // namespace sluice
