// strftime_now: formats the time of the rendering in the local time zone, like Python's
// datetime.now().strftime(format).
#include <chrono>
#include <ctime>

#include <fmt/core.h>

#include "chat/jinja/ops.h"

namespace sluice::jinja {

std::string strftime(Runtime& rt, std::string_view format) {
  constexpr size_t kMaxFormat = 4096;
  if (format.size() > kMaxFormat) rt.fail("the format of strftime_now is too long");
  const auto seconds = std::chrono::floor<std::chrono::seconds>(rt.now);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(rt.now - seconds).count();
  const std::time_t time = std::chrono::system_clock::to_time_t(seconds);
  std::tm local{};
  if (!localtime_r(&time, &local)) rt.fail("cannot convert the time to the local time zone");

  std::string out;
  for (size_t at = 0; at < format.size();) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out += format[at++];
      continue;
    }
    size_t end = at + 1;
    while (end < format.size() && std::string_view("-_0^#EO").find(format[end]) != std::string_view::npos) ++end;
    const std::string directive(format.substr(at, std::min(end + 1, format.size()) - at));
    at += directive.size();
    // Python's datetime handles these itself: microseconds, and empty time zones for local times.
    if (directive == "%f") {
      out += fmt::format("{:06}", micros);
    } else if (directive != "%z" && directive != "%Z") {
      char buffer[256];
      out.append(buffer, std::strftime(buffer, sizeof buffer, directive.c_str(), &local));
    }
  }
  return out;
}

}  // namespace sluice::jinja
