// Implements the four log functions of log.h with spdlog.
#include "base/log.h"

#define SPDLOG_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/json.h"
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

bool json_lines = false;

std::string text_of(const Field& field) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) return std::string(*text);
  if (const auto* number = std::get_if<int64_t>(&field.value)) return std::to_string(*number);
  return fmt::format("{:.3f}", std::get<double>(field.value));
}

// The members of a line's object after time and level.
std::string members(std::string_view message, std::span<const Field> fields) {
  std::string out = fmt::format("\"message\":{}", dump_json(std::string(message)));
  for (const Field& field : fields) {
    const bool text = std::holds_alternative<std::string_view>(field.value);
    out += fmt::format(",{}:{}", dump_json(std::string(field.name)), text ? dump_json(text_of(field)) : text_of(field));
  }
  return out;
}

}  // namespace

void set_format(Format format) {
  json_lines = format == Format::kJson;
  logger().set_pattern(json_lines ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e\",\"level\":\"%l\",%v}"
                                  : "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
}

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

void write(Level level, std::string_view message, std::span<const Field> fields) {
  if (!enabled(level)) return;
  const spdlog::level::level_enum to = kLevels[static_cast<int>(level)];
  if (json_lines) return logger().log(to, members(message, fields));
  std::string line(message);
  for (const Field& field : fields) line += fmt::format(" {}={}", field.name, text_of(field));
  logger().log(to, printable(line));
}

}  // namespace sluice::log
