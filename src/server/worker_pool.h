// Threads that parse, render and tokenize, so that a slow template or a long prompt delays no socket.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

#include "base/log.h"
#include "base/thread_group.h"

namespace sluice::server {

// Tasks of two sizes. A large task starts only when no small one waits, and large tasks together occupy at most half of
// the threads: a small task never waits for large ones if there is more than one thread. Thread-safe.
class WorkerPool {
 public:
  enum class Size { kSmall, kLarge };

  explicit WorkerPool(int threads) : large_limit_(std::max(1, threads / 2)) {
    for (int i = 0; i < threads; ++i) threads_.start([this] { run(); });
  }
  ~WorkerPool() { stop(); }

  // What a task throws is logged and ends that task only. Ignored after stop().
  void post(Size size, std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      (size == Size::kSmall ? small_ : large_).push_back(std::move(task));
    }
    wake_.notify_one();
  }

  // Finishes the tasks in progress and drops the others. Needs no memory.
  void stop() {
    close();
    threads_.join();
    small_.clear();  // nobody uses them any more
    large_.clear();
  }

 private:
  void close() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
  }
  bool large_may_start() const { return !large_.empty() && large_running_ < large_limit_; }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopped_ || !small_.empty() || large_may_start(); });
      if (stopped_) return;
      const bool is_large = small_.empty();
      auto& queue = is_large ? large_ : small_;
      std::function<void()> task = std::move(queue.front());
      queue.pop_front();
      if (is_large) ++large_running_;
      lock.unlock();
      perform(task);
      task = nullptr;
      lock.lock();
      if (is_large) --large_running_;
    }
  }

  static void perform(const std::function<void()>& task) noexcept {
    try {
      task();
    } catch (const std::exception& e) {
      try {
        log::error("a request failed: {}", e.what());
      } catch (...) {  // there may be no memory for the line either
      }
    }
  }

  const int large_limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> small_, large_;
  int large_running_ = 0;
  bool stopped_ = false;
  ThreadGroup threads_{[this] { close(); }};
};

}  // namespace sluice::server
