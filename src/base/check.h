// CHECK(condition, "format", values...): for what only wrong code can violate. Prints and aborts; on in every build.
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
