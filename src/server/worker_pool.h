// Threads for text processing, so that a slow template or a long prompt never stands between a socket and its tokens.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice::server {

class WorkerPool {
 public:
  explicit WorkerPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~WorkerPool() { stop(); }

  // Tasks must not throw. Ignored after stop().
  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  // Finishes the tasks in progress and drops the others.
  void stop() {
    std::deque<std::function<void()>> dropped;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      dropped.swap(tasks_);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (stopped_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::server
