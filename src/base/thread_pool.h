// A pool of pinned compute threads with a spin-then-sleep barrier: the calling thread is worker 0.
// One caller at a time. Idle workers sleep in the kernel (futex) after a short spin and cost no CPU.
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
    if (workers_.empty()) return body(0, 1);
    run_erased([](void* context, int worker,
                  int workers) { (*static_cast<std::remove_reference_t<F>*>(context))(worker, workers); },
               &body);
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
    run([&](int worker, int) {
      for (int64_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < count;) {
        piece(begin, begin + grain < count ? begin + grain : count, worker);
      }
    });
  }

  // Working memory of the op that runs now: at least `bytes`, 64-byte aligned, contents undefined, valid until the next
  // call. Grows to the largest request and stays; every op states what bounds its own. For the caller only, outside
  // run.
  std::byte* scratch(size_t bytes);

 private:
  using Task = void (*)(void* context, int worker, int workers);
  void run_erased(Task task, void* context);
  void work(int worker, int cpu);

  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };

  std::vector<std::thread> workers_;
  std::unique_ptr<std::byte, AlignedDelete> scratch_;
  size_t scratch_bytes_ = 0;
  Task task_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};  // futex word the workers wait on
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<bool> stop_{false};
};

}  // namespace sluice
