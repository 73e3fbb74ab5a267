// Implements the four log functions of log.h with spdlog.
#include "base/log.h"

#define SPDLOG_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "sluice/error.h"

namespace sluice::log {
namespace {

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                 spdlog::level::err, spdlog::level::off};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("sluice", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    return made;
  }();
  return *instance;
}

// Keeps a message on one line: control characters become \xNN. A message is cut visibly at 4 KiB.
std::string printable(std::string_view message) {
  constexpr size_t kLimit = 4096;
  std::string out;
  out.reserve(message.size());
  for (const char c : message.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (message.size() > kLimit) out += fmt::format("... ({} bytes)", message.size());
  return out;
}

}  // namespace

void set_level(Level level) { logger().set_level(kLevels[static_cast<int>(level)]); }

void set_level(std::string_view name) {
  constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};
  for (int i = 0; i < 5; ++i) {
    if (kNames[i] == name) return set_level(static_cast<Level>(i));
  }
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("log level: unknown value '{}' (expected one of: debug, info, warning, error, off)", name));
}

bool enabled(Level level) { return logger().should_log(kLevels[static_cast<int>(level)]); }

void write(Level level, std::string_view message) {
  logger().log(kLevels[static_cast<int>(level)], printable(message));
}

}  // namespace sluice::log
