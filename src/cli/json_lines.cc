// The loop of the commands that filter lines of JSON.
#include "cli/json_lines.h"

#include <fmt/core.h>

#include <iostream>

#include "sluice/error.h"

namespace sluice::cli {

int filter_json_lines(const std::function<Json(const Json& line)>& answer) {
  int status = 0;
  for (std::string line; std::getline(std::cin, line);) {
    Json out;
    try {
      out = answer(parse_json(line));
    } catch (const Error& e) {
      out = {{"error", e.what()}};
      status = 1;
    }
    fmt::print("{}\n", dump_json(out));
  }
  return status;
}

}  // namespace sluice::cli
