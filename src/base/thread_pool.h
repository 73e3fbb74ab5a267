// A pool of pinned compute threads with a spin-then-sleep barrier: the calling thread is worker 0.
// One caller at a time. Idle workers sleep in the kernel (futex) after a short spin and cost no CPU. Where other
// programs share the CPUs, parallel_for does not wait for a worker that has not been scheduled yet. Threads may be
// divided into parts, one per node of memory (base/numa.h): each begins with the share of the work that has its part's
// place among all, and so reads what it, or a neighbour, has touched first. What a body throws reaches the caller, the
// first one of several, when all threads have returned.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/numa.h"

namespace sluice {

class ThreadPool {
 public:
  // `threads` counts the caller; 0 takes every CPU this process may run on. With `pin`, worker i > 0 is bound to one
  // CPU of the process's affinity mask (the caller is left free, it belongs to somebody else; with more than one part,
  // it is bound to the CPUs of the first part's node when it calls). Parts have equally many threads, or one more.
  explicit ThreadPool(int threads = 0, bool pin = true, int parts = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  int parts() const { return parts_; }
  int part_of(int worker) const { return worker * parts_ / threads(); }

  // Runs body(worker, workers) on every thread, and returns when all have returned.
  template <class F>
  void run(F&& body) {
    start(body, /*everyone=*/true);
  }

  // Splits [0, count) into pieces of `grain` handed out dynamically; body(begin, end) or body(begin, end, worker). A
  // thread whose piece throws takes no further ones. Which thread computes a piece never changes what is computed.
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
    hand_out(
        count, grain, [grain](int64_t) { return grain; }, piece);
  }

  // Hands out [0, count) in runs that shrink from half of a thread's share to one: a thread that reads on where it was
  // is faster than one that jumps behind another's, and short runs end together. body(begin, end).
  template <class F>
  void parallel_runs(int64_t count, F&& body) {
    if (count <= 0) return;
    if (workers_.empty()) return body(0, count);
    const int64_t takers = 2 * (threads() / parts_ > 0 ? threads() / parts_ : 1);
    hand_out(
        count, 1, [takers](int64_t left) { return left / takers > 1 ? left / takers : 1; },
        [&](int64_t begin, int64_t end, int) { body(begin, end); });
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
  // piece(begin, end, worker) for pieces of [0, count) of size(what is left of a part's share), each a multiple of
  // `grain` but for a share's last. A thread whose own part's share is used up goes on with the others'.
  template <class Size, class Piece>
  void hand_out(int64_t count, int64_t grain, Size&& size, Piece&& piece) {
    struct alignas(64) Share {
      std::atomic<int64_t> next;
      int64_t end;
    };
    Share shares[kMaxNumaParts];
    const int64_t grains = (count + grain - 1) / grain;
    for (int part = 0; part < parts_; ++part) {
      const int64_t end = grains * (part + 1) / parts_ * grain;
      shares[part].next.store(grains * part / parts_ * grain, std::memory_order_relaxed);
      shares[part].end = end < count ? end : count;
    }
    const auto body_of_worker = [&](int worker, int) {
      for (int i = 0; i < parts_; ++i) {
        Share& share = shares[(part_of(worker) + i) % parts_];
        for (int64_t begin = share.next.load(std::memory_order_relaxed); begin < share.end;) {
          const int64_t asked = begin + size(share.end - begin), end = asked < share.end ? asked : share.end;
          if (!share.next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
          piece(begin, end, worker);
          begin = share.next.load(std::memory_order_relaxed);
        }
      }
    };
    start(body_of_worker, /*everyone=*/false);
  }
  void bind_caller();
  void run_task(Task task, const void* context, bool everyone);
  void call(Task task, const void* context, int worker) noexcept;
  void work(int worker, int cpu);

  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };

  int parts_ = 1;
  bool pin_ = false;
  std::vector<std::thread> workers_;
  std::unique_ptr<std::byte, AlignedDelete> scratch_;
  size_t scratch_bytes_ = 0;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // of the first thread that failed
  // The run in progress, in one word: see Gate in the .cc. Workers enter an open gate at most once per generation.
  alignas(64) std::atomic<uint64_t> gate_;
  // Futex word the workers sleep on: the gate's generation.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<bool> stop_{false};
};

}  // namespace sluice
