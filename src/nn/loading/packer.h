// Packs weights on a thread of its own, so that constructors can name further weights meanwhile, and so that the engine
// can be prepared. For devices only: on the host, the threads that pack are those that prepare. Weights that
// constructors compute are packed by them: to hand over many small ones would take longer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "ops/device.h"
#include "ops/upload.h"

namespace sluice {

// Calls come from one thread. What was packed may be used when wait() has returned.
class Packer {
 public:
  using Clock = std::chrono::steady_clock;
  using Job = std::function<void(ops::Queue&)>;

  // Packs with as many threads as the caller's queue has, on a queue of its own.
  explicit Packer(ops::Queue& callers);
  ~Packer();  // leaves what is not begun yet
  Packer(const Packer&) = delete;
  Packer& operator=(const Packer&) = delete;

  // Runs a job, which reads `bytes` of weights, after the earlier ones. If the weights stay, this returns at once.
  // Otherwise it runs the job here, on the caller's queue. Throws what an earlier job threw.
  void run(Job job, size_t bytes, bool stay);
  // Copies weights that stay, together with those of the calls before and after. Returns at once.
  void copy(ops::UploadedBytes weights);
  // Bytes of weights whose jobs are not done.
  size_t pending() const { return pending_.load(std::memory_order_relaxed); }
  // Waits until all jobs and what they queued are done, or until `deadline`. Returns whether they are. Throws what a
  // job threw.
  bool wait(Clock::time_point deadline = Clock::time_point::max());
  std::string describe() const;  // "15 GiB in 350 ms": the jobs of the thread; call it after wait()

 private:
  struct Waiting {
    Job job{};
    ops::UploadedBytes copy{};  // without a job
    size_t bytes = 0;
  };
  void add(Waiting waiting);
  void work(const std::stop_token& stop);
  std::vector<Waiting> take();

  ops::Queue& callers_;
  bool callers_busy_ = false;  // with a job
  ThreadPool pool_;
  const std::unique_ptr<ops::Queue> queue_;
  std::atomic<size_t> pending_{0};
  size_t handed_over_ = 0;  // bytes
  Clock::time_point begin_{}, end_{};
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Waiting> jobs_;  // those that are not begun
  bool busy_ = false;         // with a job, or with copies
  std::exception_ptr error_;  // what the last job threw
  std::jthread thread_;
};

}  // namespace sluice
