// How long the parts of a start took, for the debug log.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <string>
#include <string_view>

namespace sluice {

class Phases {
 public:
  // Ends a phase, which began when the one before ended.
  void end(std::string_view name) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> took = now - begin_;
    text_ += fmt::format("{}{} {:.0f} ms", text_.empty() ? "" : ", ", name, took.count());
    begin_ = now;
  }
  const std::string& text() const { return text_; }  // "files 3 ms, device 180 ms"

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string text_;
};

}  // namespace sluice
