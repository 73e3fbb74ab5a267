// A command line, a variable or a configuration file that cannot be used. The program prints it and exits with
// status 2.
#pragma once

#include <stdexcept>

namespace sluice::cli {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace sluice::cli
