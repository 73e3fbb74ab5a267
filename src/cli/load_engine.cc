// Loads a model and reports progress; see load_engine.h.
#include "cli/load_engine.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/log.h"

namespace sluice::cli {
namespace {

class LoadProgress {
 public:
  LoadProgress() : terminal_(::isatty(STDERR_FILENO) != 0), next_(Clock::now() + (terminal_ ? kMoment : kLine)) {}
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;
  ~LoadProgress() { clear(); }

  void operator()(double share) {
    const Clock::time_point now = Clock::now();
    if (share >= 1) clear();  // later log lines start on their own line
    if (share >= 1 || now < next_) return;
    const int percent = static_cast<int>(100 * share);
    if (terminal_) {
      fmt::print(stderr, "\r[{}] {:3} % of the weights loaded", bar(share), percent);
      shown_ = true, next_ = now + std::chrono::milliseconds(100);
    } else {
      log::info("{} % of the weights loaded", percent);
      next_ = now + kLine;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  void clear() {
    if (std::exchange(shown_, false)) fmt::print(stderr, "\r\033[K");
  }

  static constexpr std::chrono::milliseconds kMoment{500}, kLine{10000};
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point next_;
};

}  // namespace

std::string bar(double share, int places) {
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * places);
  return std::string(full, '#') + std::string(places - full, ' ');
}

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const std::function<void(double)>& progress) {
  LoadProgress shown;
  return Engine::load(options, [&](double share) {
    shown(share);
    if (progress) progress(share);
  });
}

}  // namespace sluice::cli
