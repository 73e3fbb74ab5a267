// Writes log lines to stderr: log::info("loaded {} tensors", n). Control characters in values are escaped, so no client
// or checkpoint can forge a line. The level is info until set_level is called, and the lines are text until set_format
// makes them JSON.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace sluice::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

void set_level(Level level);
// Accepts "debug", "info", "warning", "error" and "off". Throws Error(kInvalidRequest) for any other name.
void set_level(std::string_view name);
enum class Format { kText, kJson };
void set_format(Format format);

// A value beside the message: " name=value" in text, a member of the object in JSON. Owns no text: copies of a variant
// with a string are undefined in GCC 12's library when memory is short.
struct Field {
  std::string_view name;
  std::variant<std::string_view, int64_t, double> value;
};

bool enabled(Level level);
void write(Level level, std::string_view message, std::span<const Field> fields = {});

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning)) write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sluice::log
