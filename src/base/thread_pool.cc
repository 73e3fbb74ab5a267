// Workers watch one generation counter: spin for a while (the next op of a step follows within microseconds), then
// sleep in the kernel through std::atomic::wait.
#include "base/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <new>

#include "base/check.h"

namespace sluice {
namespace {

// Long enough to bridge the serial parts between two ops of a step, short enough to cost nothing when idle.
constexpr auto kSpin = std::chrono::microseconds(100);

constexpr std::align_val_t kScratchAlignment{64};

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

template <class Condition>
bool spin_until(Condition&& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      _mm_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin) {
  CHECK(threads >= 0 && threads <= 4096, "{} threads", threads);
  const std::vector<int> cpus = allowed_cpus();
  if (threads == 0) threads = static_cast<int>(cpus.size());
  for (int i = 1; i < threads; ++i) {
    const bool fits = pin && threads <= static_cast<int>(cpus.size());
    workers_.emplace_back([this, i, cpu = fits ? cpus[i] : -1] { work(i, cpu); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::byte* ThreadPool::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(static_cast<std::byte*>(::operator new(bytes, kScratchAlignment)));
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void ThreadPool::AlignedDelete::operator()(std::byte* memory) const { ::operator delete(memory, kScratchAlignment); }

void ThreadPool::run_erased(Task task, void* context) {
  task_ = task;
  context_ = context;
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  task(context, 0, threads());
  const auto finished = [this] { return running_.load(std::memory_order_acquire) == 0; };
  if (spin_until(finished)) return;
  for (int left; (left = running_.load(std::memory_order_acquire)) != 0;)
    running_.wait(left, std::memory_order_acquire);
}

void ThreadPool::work(int worker, int cpu) {
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  uint32_t seen = 0;
  for (;;) {
    const auto called = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called)) generation_.wait(seen, std::memory_order_acquire);
    if (!called()) continue;
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    task_(context_, worker, threads());
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

}  // namespace sluice
