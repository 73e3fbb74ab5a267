// The line that the log gets about a request: its tokens, its times and how it ended. It never has texts.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "sluice/pooling.h"
#include "sluice/request.h"

namespace sluice::server {

// Used by one thread at a time.
class RequestLog {
 public:
  using Clock = std::chrono::steady_clock;

  RequestLog(std::string id, std::string model, Clock::time_point arrived)
      : id_(std::move(id)), model_(std::move(model)), arrived_(arrived) {}

  void add(int prompt, const Event& event);
  void add(const PoolingResult& result);

  // Writes the line at the level info; only the first call does. `finish` is how the request ended; without it, as its
  // choices did. If memory is short, the line is lost.
  void write(std::string_view finish = {}) noexcept;

 private:
  std::string id_, model_;
  Clock::time_point arrived_, first_{}, last_{};
  std::map<int, Usage> prompts_;                  // tokens of each prompt
  std::map<std::pair<int, int>, int> generated_;  // tokens of each choice
  std::string finish_;                            // of the choices, without repetitions
  bool written_ = false;

  void write_line(std::string_view finish) const;
};

}  // namespace sluice::server
