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
  add({.job = std::move(job), .bytes = bytes});
}

void Packer::copy(ops::UploadedBytes weights) {
  const size_t bytes = weights.bytes;
  add({.copy = std::move(weights), .bytes = bytes});
}

void Packer::add(Waiting waiting) {
  if (std::exchange(callers_busy_, false)) callers_.wait();
  const std::scoped_lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  pending_.fetch_add(waiting.bytes, std::memory_order_relaxed);
  if (handed_over_ == 0) begin_ = Clock::now();
  handed_over_ += waiting.bytes;
  jobs_.push_back(std::move(waiting));
  changed_.notify_all();
}

bool Packer::wait(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return jobs_.empty() && !busy_; })) return false;
  if (error_) std::rethrow_exception(error_);
  queue_->wait();
  callers_.wait();
  return true;
}

std::string Packer::describe() const {
  const std::chrono::duration<double, std::milli> took = end_ - begin_;
  return fmt::format("{} in {:.0f} ms", format_bytes(handed_over_), took.count());
}

// Takes the first job, or the copies up to it.
std::vector<Packer::Waiting> Packer::take() {
  constexpr size_t kMost = size_t{2} << 30;  // of copies, so that pending() is not far behind
  std::vector<Waiting> out;
  size_t bytes = 0;
  do {
    bytes += jobs_.front().bytes;
    out.push_back(std::move(jobs_.front()));
    jobs_.pop_front();
  } while (!out.back().job && bytes < kMost && !jobs_.empty() && !jobs_.front().job);
  return out;
}

void Packer::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [&] { return !jobs_.empty(); }) && !stop.stop_requested()) {
    std::vector<Waiting> next = take();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    size_t bytes = 0;
    try {
      std::vector<ops::UploadedBytes> copies;
      for (Waiting& waiting : next) {
        bytes += waiting.bytes;
        if (!waiting.job) copies.push_back(std::move(waiting.copy));
      }
      if (copies.empty()) {
        next.front().job(*queue_);
      } else {
        ops::upload(*queue_, copies);
      }
    } catch (...) {
      error = std::current_exception();
    }
    next.clear();
    pending_.fetch_sub(bytes, std::memory_order_relaxed);
    lock.lock();
    busy_ = false;
    end_ = Clock::now();
    if (error) error_ = error, jobs_.clear();
    changed_.notify_all();
  }
}

}  // namespace sluice
