// A pool of pinned compute threads with a spin-then-sleep barrier. The calling thread is worker 0, and only one thread
// may call at a time. Idle workers sleep in the kernel (futex) after a short spin and use no CPU. Where other programs
// share the CPUs, parallel_for does not wait for a worker that has not been scheduled yet.
// Threads may be divided into parts, one per NUMA node (base/numa.h). Each thread starts on its part's share of the
// work, so it reads memory that it or a neighbor touched first. An exception thrown by a body reaches the caller once
// all threads have returned; of several, the first one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/numa.h"
#include "base/thread_group.h"

namespace sluice {

class ThreadPool {
 public:
  // `threads` counts the caller; 0 uses every CPU this process may run on. With `pin`, worker i > 0 is bound to one CPU
  // of the process's affinity mask. The caller keeps its own affinity with one part; with several parts it is bound to
  // the CPUs of the first part's node when it calls. Thread counts of parts differ by at most one. `cpus`, if not
  // empty, are the only ones to use, with one part.
  explicit ThreadPool(int threads = 0, bool pin = true, int parts = 1, std::vector<int> cpus = {});
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return workers_.size() + 1; }
  int parts() const { return parts_; }
  int part_of(int worker) const { return worker * parts_ / threads(); }

  // Runs body(worker, workers) on every thread. Returns when all threads have returned.
  template <class F>
  void run(F&& body) {
    start(body, /*everyone=*/true);
  }

  // Splits [0, count) into pieces of `grain`, handed out dynamically, and calls body(begin, end) or body(begin, end,
  // worker). A thread whose piece throws takes no more pieces. The result must not depend on which thread computes a
  // piece.
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

  // Hands out [0, count) in runs that shrink from half of a thread's share to one, and calls body(begin, end). Long
  // runs let a thread read on where it stopped; short runs at the end let all threads finish together.
  template <class F>
  void parallel_runs(int64_t count, F&& body) {
    if (count <= 0) return;
    if (workers_.empty()) return body(0, count);
    const int64_t takers = 2 * (threads() / parts_ > 0 ? threads() / parts_ : 1);
    hand_out(
        count, 1, [takers](int64_t left) { return left / takers > 1 ? left / takers : 1; },
        [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

  // Returns scratch memory for the running op: at least `bytes`, 64-byte aligned, contents undefined, valid until the
  // next call. It grows to the largest request and is kept; every op documents its bound. Only the caller may use it,
  // outside run().
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
  // Calls piece(begin, end, worker) for pieces of [0, count). A piece has size(rest of a part's share) elements, a
  // multiple of `grain` except at the end of a share. A thread that has used up its own part's share continues with the
  // other parts' shares.
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
  void stop();

  struct AlignedDelete {
    void operator()(std::byte* memory) const;
  };

  int parts_ = 1;
  bool pin_ = false;
  std::unique_ptr<std::byte, AlignedDelete> scratch_;
  size_t scratch_bytes_ = 0;
  Task task_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // exception of the first thread that failed
  // State of the current run in one word: see Gate in the .cc. Workers enter an open gate at most once per generation.
  alignas(64) std::atomic<uint64_t> gate_;
  // Futex word on which the workers sleep: the gate's generation.
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<bool> stop_{false};
  ThreadGroup workers_{[this] { stop(); }};
};

}  // namespace sluice
