// CHECK(condition, "format", values...) guards conditions that only a bug can violate. A failure prints and aborts;
// checks are on in every build.
#pragma once

#include <fmt/core.h>

namespace sluice {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace sluice

#define CHECK(condition, ...)                                                                \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::sluice::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
