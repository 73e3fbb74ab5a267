// Threads that end together. As the last member of a class a group also ends its threads when the class's constructor
// fails, while the other members still exist.
#pragma once

#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace sluice {

class ThreadGroup {
 public:
  // `stop` tells the threads to return. It may not throw.
  explicit ThreadGroup(std::function<void()> stop) : stop_(std::move(stop)) {}
  ~ThreadGroup() { join(); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // Starts a thread that calls `body`. Throws std::system_error or std::bad_alloc, and then starts none.
  template <class F>
  void start(F&& body) {
    threads_.emplace_back(std::forward<F>(body));
  }

  // Calls `stop` and waits for all threads. Without threads it does nothing.
  void join() {
    if (threads_.empty()) return;
    stop_();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  bool empty() const { return threads_.empty(); }
  int size() const { return static_cast<int>(threads_.size()); }

 private:
  std::function<void()> stop_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
