// The main() of benchmarks that take options.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "sluice/error.h"

namespace sluice::bench {

// Parses the options, runs body() and returns the exit status. Errors go to stderr.
template <class F>
int run_program(CLI::App& app, int argc, char** argv, F&& body) {
  CLI11_PARSE(app, argc, argv);
  try {
    body();
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace sluice::bench
