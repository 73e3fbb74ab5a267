// A queue of jobs and the thread that does them.
#include "nn/loading/packer.h"

#include <fmt/core.h>

#include <utility>

#include "base/bytes.h"

namespace sluice {

Packer::Packer(ops::Queue& callers)
    : callers_(callers),
      pool_(callers.threads().threads(), /*pin=*/false),
      queue_(callers.device().make_copy_queue(pool_)),
      thread_([this](const std::stop_token& stop) { work(stop); }) {}

Packer::~Packer() = default;

// A job may go on with a matrix that the job before began, on the other queue.
void Packer::run(Job job, size_t bytes, bool stay) {
  if (!stay) {
    if (!std::exchange(callers_busy_, true)) wait();
    return job(callers_);
  }
  if (std::exchange(callers_busy_, false)) callers_.wait();
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  pending_.fetch_add(bytes, std::memory_order_relaxed);
  if (handed_over_ == 0) begin_ = Clock::now();
  handed_over_ += bytes;
  jobs_.push_back({std::move(job), bytes});
  changed_.notify_all();
}

bool Packer::wait(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return jobs_.empty(); })) return false;
  if (error_) std::rethrow_exception(error_);
  queue_->wait();
  callers_.wait();
  return true;
}

std::string Packer::describe() const {
  const std::chrono::duration<double, std::milli> took = end_ - begin_;
  return fmt::format("{} in {:.0f} ms", format_bytes(handed_over_), took.count());
}

void Packer::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !jobs_.empty(); }) && !stop.stop_requested()) {
    const Waiting next = std::move(jobs_.front());
    lock.unlock();
    std::exception_ptr error;
    try {
      next.job(*queue_);
    } catch (...) {
      error = std::current_exception();
    }
    pending_.fetch_sub(next.bytes, std::memory_order_relaxed);
    lock.lock();
    jobs_.pop_front();
    end_ = Clock::now();
    if (error) error_ = error, jobs_.clear();
    changed_.notify_all();
  }
}

}  // namespace sluice
