// Filters over lines of JSON: a value a line in, a value a line out.
#pragma once

#include <functional>

#include "base/json.h"

namespace sluice::cli {

// Answers every line of standard input on standard output; a line that is no JSON or makes `answer` throw an Error
// gives
// {"error": ...}. Returns the exit status: 1 when any line did.
int filter_json_lines(const std::function<Json(const Json& line)>& answer);

}  // namespace sluice::cli
