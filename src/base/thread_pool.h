// A pool of pinned compute threads with a spin-then-sleep barrier: the calling thread is worker 0.
// One caller at a time. Idle workers sleep in the kernel (futex) after a short spin and cost no CPU. Where other
// programs share the CPUs, parallel_for does not wait for a worker that has not been scheduled yet.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sluice {

class ThreadPool {
 public:
  // `threads` counts the caller; 0 takes every CPU this process may run on. With `pin`, worker i > 0 is bound to one
  // CPU of the process's affinity mask (the caller is left free, it belongs to somebody else).
  explicit ThreadPool(int threads = 0, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(worker, workers) on every thread, and returns when all have returned. body must not throw.
  template <class F>
  void run(F&& body) {
    start(body, /*everyone=*/true);
  }

  // Splits [0, count) into pieces of `grain` handed out dynamically; body(begin, end) or body(begin, end, worker).
  // Which thread computes a piece never changes what is computed.
  template <class F>
  void parallel_for(int64_t count, int64_t grain, F&& body) {
    const auto piece = [&](int64_t begin, int64_t end, int worker) {
      if constexpr (std::is_invocable_v<F, int64_t, int64_t, int>) {
        body(begin, end, worker);
      } else {
        body(begin, end);
      }
    };
    if (count <= 0) return;
    if (workers_.empty() || count <= grain) return piece(0, count, 0);
    std::atomic<int64_t> next{0};
    const auto body_of_worker = [&](int worker, int) {
      for (int64_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < count;) {
        piece(begin, begin + grain < count ? begin + grain : count, worker);
      }
    };
    start(body_of_worker, /*everyone=*/false);
  }

  // Working memory of the op that runs now: at least `bytes`, 64-byte aligned, contents undefined, valid until the next
  // call. Grows to the largest request and stays; every op states what bounds its own. For the caller only, outside
  // run.
  std::byte* scratch(size_t bytes);

 private:
  using Task = void (*)(const void* context, int worker, int workers);

  template <class F>
  void start(const F& body, bool everyone) {
    if (workers_.empty()) return body(0, 1);
    const Task task = [](const void* context, int worker, int workers) {
      (*static_cast<const F*>(context))(worker, workers);
    };
    run_task(task, &body, everyone);
  }
  void run_task(Task task, const void* context, bool everyone);
  void work(int worker, int cpu);

  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };

  std::vector<std::thread> workers_;
  std::unique_ptr<std::byte, AlignedDelete> scratch_;
  size_t scratch_bytes_ = 0;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  // The run in progress, in one word: see Gate in the .cc. Workers enter an open gate at most once per generation.
  alignas(64) std::atomic<uint64_t> gate_;
  // Futex word the workers sleep on: the gate's generation.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<bool> stop_{false};
};

}  // namespace sluice
