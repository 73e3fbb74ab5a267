// Filters lines of JSON: one value per line in, one value per line out.
#pragma once

#include <functional>

#include "base/json.h"

namespace sluice::cli {

// Answers every line of standard input on standard output. For a line that is not JSON, or for which `answer` throws an
// Error, prints {"error": ...}. Returns the exit status: 1 if any line failed.
int filter_json_lines(const std::function<Json(const Json& line)>& answer);

}  // namespace sluice::cli
