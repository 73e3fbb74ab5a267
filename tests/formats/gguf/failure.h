// Errors of readers.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sluice/error.h"

namespace sluice::testing {

struct Failure {
  ErrorCode code;
  std::string message;
};
// The Error that `f` throws; nullopt: none.
inline std::optional<Failure> failure(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return Failure{e.code, e.what()};
  }
  return std::nullopt;
}

}  // namespace sluice::testing
