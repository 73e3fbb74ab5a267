// Commands from other threads to the engine's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

template <class Command>
class Inbox {
 public:
  using Clock = std::chrono::steady_clock;

  void push(Command command) {
    {
      const std::scoped_lock lock(mutex_);
      commands_.push_back(std::move(command));
    }
    wake_.notify_one();
  }
  void close() {
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
    }
    wake_.notify_one();
  }
  // Takes all commands. With `wait`, it first sleeps until there is a command, `until` is reached or the inbox is
  // closed.
  std::vector<Command> take(bool wait, std::optional<Clock::time_point> until) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return closed_ || !commands_.empty(); };
    if (wait && until) wake_.wait_until(lock, *until, ready);
    if (wait && !until) wake_.wait(lock, ready);
    return std::exchange(commands_, {});
  }
  bool closed() {
    const std::scoped_lock lock(mutex_);
    return closed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;
  bool closed_ = false;
};

}  // namespace sluice
